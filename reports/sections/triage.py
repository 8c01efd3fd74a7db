"""The content of a triage verdict, arranged once for every renderer: culprits, victims in groups, the cycle.

Texts are cleaned here; a renderer only escapes for its own format.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from reports.model import Node, Party, Triage, Verdict, Wait
from reports.text import agreeing, clean, first_of

_NO_PID = re.compile(r":(0|rank_\d+)$")  # in the key of a process
SHOWN_NODES = 64  # a drawing or table of a thousand processes would be unreadable


@dataclass(frozen=True)
class Culprit:
    """One row of the culprits' table."""

    who: str  # "rank 1", or a role where there is no rank
    role: str
    process: str  # host:pid, or the dump's name; "" where nothing more than `who` is known
    why: str
    frame: str


@dataclass(frozen=True)
class Victims:
    """Processes that wait for the same thing. `who`: such as "ranks 0, 2-7"."""

    count: int
    noun: str  # rank, ranks, process, processes
    who: str
    waits: str

    @property
    def line(self) -> str:
        """Return text such as "6 ranks wait in all_reduce #17 of tp: rank 3 has not come"."""
        return f"{self.count} {self.noun} {agreeing(self.count, 'waits', 'wait')} in {self.waits}"


@dataclass(frozen=True)
class Stack:
    """The stack of the main thread of processes with equal stacks: "rank 0, rank 2"."""

    who: str
    frames: list[str]  # innermost first


@dataclass(frozen=True)
class Step:
    """One edge of a cycle. `because`: what proves it, or what the waiter is in where no layer names its target."""

    waiter: str
    target: str
    because: str


def title(verdict: Verdict) -> str:
    """Return the verdict with its kind or its reservations: "HUNG K1 trip count", "EQUIVALENT, but 2 warnings"."""
    hang = verdict.triage.hang if verdict.triage else ""
    name = verdict.triage.name if verdict.triage else ""
    return " ".join(filter(None, (clean(verdict.headline), clean(hang), name)))


def culprits(triage: Triage) -> list[Culprit]:
    """Return rows of the culprits' table, in the verdict's order."""
    return [
        Culprit(_who(party), _role(party), _process(party), clean(party.why), clean(party.frame))
        for party in triage.culprits
    ]


def _process(party: Party) -> str:
    """Return `host:pid`, or the name of its dump; "" where that is its rank again, or its pid is not known."""
    process = f"{party.host}:{party.pid}" if party.pid is not None else party.key
    return "" if process == _who(party) or _NO_PID.search(process) else clean(process)


def victims(triage: Triage) -> list[Victims]:
    """Return victims grouped by what they wait for, the largest group first."""
    groups: dict[str, list[Party]] = {}
    for party in triage.victims:
        groups.setdefault(clean(party.why), []).append(party)
    rows = []
    for why, parties in groups.items():
        ranked = [party.rank for party in parties if party.rank is not None]
        if len(set(ranked)) == len(parties):
            noun, who = agreeing(len(parties), "rank", "ranks"), ranks(ranked)
        else:
            noun = agreeing(len(parties), "process", "processes")
            who = first_of(_distinct_names(parties), 6)
        rows.append(Victims(len(parties), noun, who, why))
    return sorted(rows, key=lambda group: -group.count)


def _distinct_names(parties: list[Party]) -> list[str]:
    """Return the name of each process, with its key where several have that name."""
    names = [_who(party) for party in parties]
    often = Counter(names)
    return [
        name if often[name] == 1 else f"{name} ({clean(party.key)})" for name, party in zip(names, parties, strict=True)
    ]


def ranks(numbers: Iterable[int]) -> str:
    """Return ranks in few words: "0, 2-7"."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    texts = [str(first) if first == last else f"{first}-{last}" for first, last in runs]
    return first_of(texts, 12)


def cycle(triage: Triage) -> list[Step]:
    """Return the edges of the cycle in order; the last one leads back to the first process."""
    if not triage.cycle:
        return []
    labels = {node.key: clean(node.label) for node in triage.nodes}
    states = {node.key: clean(node.state) for node in triage.nodes}
    steps = []
    for key, next_key in zip(triage.cycle, [*triage.cycle[1:], *triage.cycle[:1]], strict=True):
        wait = next((edge for edge in triage.waits if (edge.waiter, edge.target) == (key, next_key)), None)
        because = states.get(key, "") if wait is None else _because(wait)
        steps.append(Step(labels.get(key, clean(key)), labels.get(next_key, clean(next_key)), because))
    return steps


def processes(triage: Triage) -> list[tuple[str, str, str, str]]:
    """Return (mark, label, key, state) of the first SHOWN_NODES processes: parties first, bystanders last. The key is
    empty where its pid is not known."""
    rows = []
    for node in _parties_first(triage)[:SHOWN_NODES]:
        key = "" if _NO_PID.search(node.key) else node.key
        rows.append((clean(node.party), clean(node.label), clean(key), clean(node.state)))
    return rows


def _parties_first(triage: Triage) -> list[Node]:
    """Return the processes, culprits first, then suspects, victims and bystanders."""
    order = {"culprit": 0, "suspect": 1, "victim": 2, "bystander": 3}
    return sorted(triage.nodes, key=lambda node: order.get(node.party, 3))


def stacks(triage: Triage) -> list[Stack]:
    """Return every distinct stack with the processes that have it, those of the parties first."""
    labels_by_stack: dict[tuple[str, ...], list[str]] = {}
    for node in _parties_first(triage):
        if node.stack:
            labels_by_stack.setdefault(tuple(map(clean, node.stack)), []).append(clean(node.label))
    return [Stack(first_of(names, 6), list(frames)) for frames, names in labels_by_stack.items()]


def left_out(triage: Triage) -> int:
    """Return how many processes `processes` leaves out."""
    return max(0, len(triage.nodes) - SHOWN_NODES)


def _because(wait: Wait) -> str:
    since = f", {wait.since_s:.0f} s" if wait.since_s else ""
    return clean(f"{wait.layer}: {wait.because}{since}")


def _role(party: Party) -> str:
    """Return what is shown after the name. "process" is a probe's word for an unknown role."""
    if party.rank is None or party.role == "process":
        return clean(party.engine)
    return clean(party.role)


def _who(party: Party) -> str:
    if party.rank is not None:
        return f"rank {party.rank}"
    return clean(party.role or re.sub(r"^.*:", "pid ", party.key))
