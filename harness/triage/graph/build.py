"""Builds the wait graph out of the layers, and finds where waiting ends in it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property

from harness.triage.evidence import Evidence, Process
from harness.triage.flight.model import Collective, Comparison
from harness.triage.graph import calls, edges, motion
from harness.triage.graph.shape import components
from harness.triage.graph.subjects import LAUNCHERS, Subject, subject
from harness.triage.stacks import user_frame
from reports.model import Wait


@dataclass(frozen=True)
class Graph:
    """Nodes, edges, and where waiting ends: `sinks` are waited for and wait for nobody, `cycles` wait in a ring."""

    subjects: dict[str, Subject]
    waits: tuple[Wait, ...]
    sinks: tuple[str, ...]
    cycles: tuple[tuple[str, ...], ...]

    # Rules ask for these again and again, and a job of a thousand ranks has tens of thousands of waits.
    @cached_property
    def waiting(self) -> frozenset[str]:
        """The processes of which something says for whom they wait."""
        return frozenset(wait.waiter for wait in self.waits)

    @cached_property
    def _waits_by_target(self) -> dict[str, list[Wait]]:
        waits_by_target: dict[str, list[Wait]] = {}
        for wait in self.waits:
            waits_by_target.setdefault(wait.target, []).append(wait)
        return waits_by_target

    def waits_for(self, target: str) -> list[Wait]:
        return self._waits_by_target.get(target, [])

    def waiters(self, targets: set[str]) -> list[str]:
        """All processes that wait for one of `targets`, directly or through others, without the targets themselves."""
        reached_keys, queue = set(targets), list(targets)
        while queue:
            for wait in self.waits_for(queue.pop()):
                if wait.waiter not in reached_keys:
                    reached_keys.add(wait.waiter)
                    queue.append(wait.waiter)
        return [key for key in self.subjects if key in reached_keys and key not in targets]

    def stuck(self) -> list[Subject]:
        """Processes that wait for another process, launchers left out."""
        return [
            node for node in self.subjects.values() if (node.stuck or node.key in self.waiting) and not node.launcher
        ]


def build(evidence: Evidence, comparison: Comparison | None) -> Graph:
    """Build the wait graph of everything that was seen."""
    names = edges.Names.of(evidence, comparison)
    pending = pending_of(comparison, names)
    children = children_of(evidence)
    cards = {gpu.host for gpu in evidence.gpus}
    # Timers of an event loop count as progress only for a limited time, measured by the stall or the oldest pending
    # operation.
    ages = [operation.age_s for operation in pending.values() if operation.age_s is not None]
    waited_s = evidence.stall_s or max(ages, default=0.0)
    timers = waited_s < motion.TIMERS * (evidence.threshold_s or motion.THRESHOLD_S)
    subjects = {
        process.key: subject(
            process,
            pending.get(process.key),
            children,
            motion.Surroundings(evidence.stall_s, gpu=process.host in cards, timers=timers),
        )
        for process in evidence.processes
    }
    subjects = _told_apart(subjects)
    # Members that only a recorder knows become nodes too, so that a wait for them has an end.
    for group in comparison.groups if comparison else ():
        for rank in {*group.ranks, *group.absent, *group.silent, *group.group.members}:
            key = names.key(group, rank)
            if key not in subjects:
                # a dump of the rank counts as seen, even if it does not contain this group
                has_dump = comparison is not None and rank in comparison.ranks and not group.joined
                subjects[key] = Subject(
                    key, rank=None if group.joined else rank, pending=pending.get(key), observed=has_dump,
                    frame=_frame(pending.get(key)),
                )  # fmt: skip
    proven_waits, subjects = edges.without_idle_engines(edges.collective(comparison, names, subjects), subjects)
    # Later layers see the waits that earlier ones proved: the order goes from strong to weak evidence.
    for more in (
        edges.store,
        calls.ray,
        calls.http,
        calls.closed_reads,
        calls.children,
        edges.unresolved,
        calls.owed_reads,
    ):
        new, subjects = more(evidence, subjects, proven_waits)
        proven_waits = edges.merged(proven_waits, new)
    subjects = calls.answering(evidence, subjects, proven_waits)
    waits = tuple(
        wait for wait in proven_waits if not subjects[wait.waiter].finished and not _passing(evidence, wait, subjects)
    )
    sinks, cycles = components([(wait.waiter, wait.target) for wait in waits])
    return Graph(subjects, waits, tuple(sinks), tuple(map(tuple, cycles)))


def _told_apart(subjects: dict[str, Subject]) -> dict[str, Subject]:
    """Find processes that share a label or a rank, and mark the others as `alone`. A second engine has the same
    ranks."""
    labels = Counter(node.label for node in subjects.values())
    ranks = Counter(node.rank for node in subjects.values())
    return {
        key: node if labels[node.label] < 2 and (node.label != f"rank {node.rank}" or ranks[node.rank] < 2)
        else replace(node, alone=False)
        for key, node in subjects.items()
    }  # fmt: skip


def _passing(evidence: Evidence, wait: Wait, subjects: dict[str, Subject]) -> bool:
    """Whether a wait is only momentary, so that the graph leaves it out.

    It is if nobody watched a stall, the waiter works, and the target does not: a call or collective of a working
    process does not hold it up for long. If a stall was watched, the waiter did nothing for all that time, and the wait
    counts.
    """
    waiter, calls = subjects[wait.waiter], ("ray", "http", "engine", "process", "collective")
    works = waiter.moved and waiter.pending is None
    return not evidence.stall_s and works and wait.layer in calls and not subjects[wait.target].progress


def pending_of(comparison: Comparison | None, names: edges.Names) -> dict[str, Collective]:
    """Node -> its oldest operation that is not done, over all its groups."""
    pending_by_key: dict[str, Collective] = {}
    for group in comparison.groups if comparison else ():
        oldest = [(rank, state.pending) for rank, state in group.ranks.items() if state.pending is not None]
        oldest += [(rank, operations[0]) for rank, operations in group.p2p.items()]
        for rank, pending in oldest:
            key = names.key(group, rank)
            before = pending_by_key.get(key)
            if before is None or (pending.age_s or 0.0) > (before.age_s or 0.0):
                pending_by_key[key] = pending
    return pending_by_key


def children_of(evidence: Evidence) -> dict[str, tuple[Process, ...]]:
    """Key -> the processes that it started, without launchers."""
    children_by_key: dict[str, list[Process]] = {}
    for process in evidence.processes:
        if process.role not in LAUNCHERS:
            children_by_key.setdefault(f"{process.host}:{process.ppid}", []).append(process)
    return {key: tuple(processes) for key, processes in children_by_key.items()}


def _frame(pending: Collective | None) -> str:
    """Where it enqueued what it waits in; "" where nothing is pending, since it has gone on from its last operation."""
    return user_frame(pending.frames) if pending else ""
