"""The edges of the wait graph, layer by layer. Each function returns the waits that it can prove.

A member waits for another member that has not come as far in the group, that came with a different operation, or that
never started the operation on its device. A rank never waits for another because that one is *ahead*: Gloo's recorder
cannot tell started from enqueued, and a sender may be done before its receivers have come.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from harness.triage.evidence import Evidence, Frame, Process
from harness.triage.flight.compare import usual_side
from harness.triage.flight.model import Comparison, GroupState, Mismatch, RankState
from harness.triage.flight.operations import peers
from harness.triage.graph import motion
from harness.triage.graph.subjects import Subject, ended, finished
from harness.triage.graph.worlds import same_kind, same_world, world
from harness.triage.group_argument import GroupArgument, group_argument
from harness.triage.places import plain, users
from probes import limits
from probes.collectives import HELPER, MAKERS, MEETING
from reports.model import Wait

RESTART_S = 1.0  # one heartbeat period: the last beat of an attempt may be written after the next attempt started
MAX_TARGETS = (
    64  # edges per waiter and group; the verdict lists every rank that has not come, so the graph does not have to
)


@dataclass(frozen=True)
class Names:
    """Maps ranks of a group to nodes of the graph."""

    keys: frozenset[str]
    by_rank: dict[int, tuple[Process, ...]]

    @staticmethod
    def of(evidence: Evidence, comparison: Comparison | None) -> Names:
        ranks: dict[int, list[Process]] = {}
        for process in evidence.processes:
            if process.rank is not None and not superseded(process, evidence.processes):
                ranks.setdefault(process.rank, []).append(process)
        return Names(
            frozenset(process.key for process in evidence.processes),
            {rank: tuple(processes) for rank, processes in ranks.items()},
        )

    def key(self, group: GroupState, rank: int) -> str:
        """The node of a member: its process, or "rank N" if nobody saw it or several processes could be meant."""
        state = group.ranks.get(rank)
        if state is not None and state.key in self.keys:
            return state.key
        if group.joined:
            return f"rank {rank} of {title(group)}"
        holders = self.by_rank.get(rank, ())
        if len(holders) > 1:  # several worlds have this rank: take the one of the group's size
            sizes = {len(group.group.members), group.group.world_size} - {0}
            holders = tuple(process for process in holders if process.world_size in sizes) or holders
        return holders[0].key if len(holders) == 1 else f"rank {rank}"


def collective(comparison: Comparison | None, names: Names, subjects: dict[str, Subject]) -> list[Wait]:
    """The waits that the flight recorders prove."""
    waits: list[Wait] = []
    for group in comparison.groups if comparison else ():
        waits += _group(group, names, subjects)
        # Sends and receives are matched apart: only two ranks take part in each.
        waits += _point_to_point(group, names)
    return waits


def without_idle_engines(waits: list[Wait], subjects: dict[str, Subject]) -> tuple[list[Wait], dict[str, Subject]]:
    """Turn waits among the ranks of an idle engine into idleness. Returns the remaining waits and the changed subjects.

    Its other ranks stand in a broadcast until its first rank receives a request, so no collective of theirs is pending.
    """
    targets: dict[str, list[Subject]] = {}
    for wait in waits:
        targets.setdefault(wait.waiter, []).append(subjects[wait.target])
    idle = {
        key: replace(subjects[key], pending=None, doing=replace(subjects[key].doing, kind="orders"))
        for key, awaited in targets.items()
        if subjects[key].doing.kind == "collective" and subjects[key].doing.around[:1] == ("orders",)
        if all(
            target.doing.idle and target.doing.within("orders") and not target.stuck and not target.blocked
            for target in awaited
        )
    }
    return [wait for wait in waits if wait.waiter not in idle], {**subjects, **idle}


def _group(group: GroupState, names: Names, subjects: dict[str, Subject]) -> list[Wait]:
    at = {rank: position(state) for rank, state in group.ranks.items()}
    at |= {rank: -1 for rank in group.silent if rank not in group.unsure}
    difference = mismatch(group)
    waits = []
    # Laggards are collected once for each awaited seq, not once for each waiter: a group may have a thousand members.
    behind: dict[int, list[int]] = {}
    for rank in group.waiting:
        state = group.ranks[rank]
        assert state.pending is not None
        seq = state.pending.seq
        if seq not in behind:
            behind[seq] = sorted(peer_rank for peer_rank, place in at.items() if place < seq)
        # Evidence from strong to weak: ranks that are behind, ranks in a different operation, ranks whose device has
        # not started it, and last ranks without a dump.
        reasons = dict.fromkeys((peer_rank for peer_rank in behind[seq] if peer_rank != rank), "has not come")
        if difference is not None and difference.seq == seq:
            reasons |= dict.fromkeys(_ranks_that_differ(group, difference, rank), _DIFFERS[difference.field])
        if not reasons and state.pending.started:
            reasons = {
                peer_rank: "has not started it on its device"
                for peer_rank, its in group.ranks.items()
                if peer_rank != rank and its.pending is not None and its.pending.seq == seq and not its.pending.started
            }
        if not reasons:
            reasons = _without_dump(group, names, subjects)
        operation = f"{state.pending.op} #{seq} of {title(group)}"
        for awaited_rank, why in list(reasons.items())[:MAX_TARGETS]:
            waiter, target = names.key(group, rank), names.key(group, awaited_rank)
            if waiter != target:
                its = subjects.get(target)
                who = f"rank {awaited_rank}" if its is None or its.alone else its.label
                because = f"{operation}: {who} {why}"
                waits.append(
                    Wait(
                        waiter=waiter,
                        target=target,
                        layer="collective",
                        because=because,
                        since_s=state.pending.age_s,
                        group=group.group.name,
                        seq=seq,
                        operation=operation,
                    )
                )
    return waits


def _point_to_point(group: GroupState, names: Names) -> list[Wait]:
    """Waits of sends and receives for the rank at their other end, unless that rank has enqueued its half."""
    halves = {(peers(half.op), half.op.partition(" ")[0]) for unfinished in group.p2p.values() for half in unfinished}
    waits = []
    for rank, operations in group.p2p.items():
        oldest, ends = operations[0], peers(operations[0].op)
        what = oldest.op.partition(" ")[0]
        place = None if ends is None else ends[1] if what == "send" else ends[0]
        if place is None or place >= len(group.group.members) or (ends, "recv" if what == "send" else "send") in halves:
            continue
        peer = group.group.members[place]
        operation = f"{oldest.op} #{oldest.seq} of {title(group)}"
        because = f"{operation}: rank {peer} has not come"
        waiter, target = names.key(group, rank), names.key(group, peer)
        waits.append(
            Wait(
                waiter=waiter,
                target=target,
                layer="collective",
                because=because,
                since_s=oldest.age_s,
                group=group.group.name,
                seq=oldest.seq,
                operation=operation,
            )
        )
    return waits


def title(group: GroupState) -> str:
    """The name of a group for people. Torch numbers groups that nobody named, and a bare number would read as a
    count."""
    desc, name = group.group.desc, group.group.name
    if desc and desc != "undefined":
        return desc
    return f"group {name}" if name.isdigit() else name or "a group"


def position(state: RankState) -> int:
    """The seq of the operation that a rank is in; of the last one that it enqueued if none is pending."""
    return state.pending.seq if state.pending is not None else state.enqueued


def mismatch(group: GroupState) -> Mismatch | None:
    """The earliest difference at or before an operation that somebody still waits for; None without one."""
    waited = [state.pending.seq for state in group.ranks.values() if state.pending is not None]
    differences = [difference for difference in group.mismatches if waited and difference.seq <= max(waited)]
    return min(differences, key=lambda difference: (difference.seq, difference.field != "op")) if differences else None


def _ranks_that_differ(group: GroupState, difference: Mismatch, rank: int) -> list[int]:
    """The ranks that did something different from `rank` at this place; none if `rank` itself is on the unusual
    side."""
    mine = next((what for what, ranks in difference.values.items() if rank in ranks), None)
    usual = usual_side(group, difference)
    if mine is None or (usual is not None and mine != usual):
        return []
    return sorted(peer_rank for ranks in difference.values.values() if rank not in ranks for peer_rank in ranks)


def _without_dump(group: GroupState, names: Names, subjects: dict[str, Subject]) -> dict[int, str]:
    """Members without a recorder -> why they are waited for. Members whose stack shows a collective are left out."""
    reasons = {}
    for absent_rank in group.absent:
        its = subjects.get(names.key(group, absent_rank))
        if its is None or not its.observed or not its.has_process:
            reasons[absent_rank] = "has no recorder data"
        elif its.ended:
            reasons[absent_rank] = "has ended"
        elif its.process.error and not its.process.samples:
            reasons[absent_rank] = "has failed"
        elif its.blocked or not its.doing.within("collective", "p2p"):
            reasons[absent_rank] = "is not there, by its stack"
    return reasons


def store(
    evidence: Evidence, subjects: dict[str, Subject], known_waits: list[Wait]
) -> tuple[list[Wait], dict[str, Subject]]:
    """Waits in a rendezvous or in the making of a group for the ranks that have not come there.

    Returns the waits and the subjects, to which ranks that nobody saw are added.
    """
    waits: list[Wait] = []
    subjects = dict(subjects)
    joining = {key: what for key, member in subjects.items() if (what := forming(member)) is not None}
    ranked: dict[int, list[Subject]] = {}
    for subject in subjects.values():
        if subject.rank is not None and subject.has_process and not superseded(subject.process, evidence.processes):
            ranked.setdefault(subject.rank, []).append(subject)
    # All ranks of one world lack the same ranks: so they are looked for once, not by each of a thousand ranks.
    absent: dict[object, list[tuple[int, list[Subject]]]] = {}
    for key, what in joining.items():
        subject = subjects[key]
        if what.name:
            continue  # nobody recorded its other members
        expected = what.members or tuple(range(what.world_size))
        group = (world(subject.process), expected)
        if group not in absent:
            absent[group] = list(_not_come(subject, expected, ranked, joining))
        for rank, counterparts in absent[group]:
            if rank == subject.rank:
                continue
            # A rank without any process becomes a node of its own, so that it can be named as never started.
            name = f"rank {rank}"
            for counterpart in counterparts or [subjects.setdefault(name, Subject(name, rank=rank, observed=False))]:
                because = f"{what.op}: {counterpart.label} has not come"
                waits.append(Wait(key, counterpart.key, "store", because, what.age_s, operation=what.op))
    return waits, subjects


def _not_come(
    subject: Subject, expected: Iterable[int], ranked: Mapping[int, list[Subject]], joining: Container[str]
) -> Iterator[tuple[int, list[Subject]]]:
    """Yield the expected ranks that do not make the group of the subject, each with its processes: none if nobody saw
    the rank."""
    for rank in expected:
        holders = _holders(subject, ranked.get(rank, []), joining)
        outside = [holder for holder in holders if holder.key not in joining]
        if outside or not holders:
            yield rank, outside


def _holders(subject: Subject, holders: list[Subject], joining: Container[str]) -> list[Subject]:
    """Those of the holders of a rank that are in the subject's world.

    Several worlds may have this rank; only the one of the same address is meant. A rank that makes the group at another
    address has come to the wrong one. That is another fault.
    """
    return [holder for holder in holders if same_world(subject.process, holder.process)] or [
        holder for holder in holders if holder.key in joining and same_kind(subject.process, holder.process)
    ]


@dataclass(frozen=True)
class Forming:
    """A group that a process is making.

    `members` are global ranks; empty if nobody said them. `name` and `place` belong to a group beside torch's register,
    such as that of a weight sync: its name, and the process's own rank in the numbering of that group.
    """

    op: str
    world_size: int = 0
    members: tuple[int, ...] = ()
    age_s: float | None = None
    name: str = ""
    place: int = -1


# What a peer does whose operation differs in a field of a `Mismatch`.
_DIFFERS = {"op": "is in another operation", "sizes": "gives other sizes", "dtype": "gives another data type"}
_MAKING = (*MAKERS, MEETING, HELPER)  # spans in which a process makes a group
KEY = "store"  # the operation of a wait for a key that no function of a group surrounds


def forming(subject: Subject) -> Forming | None:
    """The group that this process is making, by its open spans and its stack; None if it makes none."""
    if subject.ended:
        return None
    spans = [] if _over(subject) else [span for span in subject.process.open_spans if span.name in _MAKING]
    if not spans and (subject.doing.kind != "store" or subject.doing.op == KEY):
        return None  # a program that waits for a key of a store of its own makes no group
    fields: dict[str, object] = {}
    # Spans nest. A field of the outermost span wins over the same field of an inner one.
    for span in spans:
        fields = {**span.fields, **fields}
    age_s = spans[0].age_s if spans else None
    name, place, size = (fields.get(key) for key in ("group_name", "group_rank", "group_size"))
    if isinstance(name, str) and name and isinstance(place, int) and isinstance(size, int) and not _registers(subject):
        return Forming(name, size, (), age_s, name, place)
    op = spans[0].name if spans else subject.doing.op or "rendezvous"
    ranks, world_size = fields.get("ranks"), fields.get("world_size")
    if isinstance(ranks, list) and (members := tuple(rank for rank in ranks if isinstance(rank, int))):
        return Forming(op, len(members), members, age_s)
    world = world_size if isinstance(world_size, int) and world_size > 0 else subject.process.world_size or 0
    return Forming(op, world, (), age_s)


def _registers(subject: Subject) -> bool:
    """Whether the group goes into torch's register, by an open span or a frame of the function that makes it."""
    if any(span.name in MAKERS for span in subject.process.open_spans):
        return True
    frames = [frame for thread in subject.process.threads for frame in thread.frames]
    return any(plain(frame.function) in MAKERS and "torch/distributed/" in frame.file for frame in frames)


def _over(subject: Subject) -> bool:
    """Whether the group is already made: its spans come from a heartbeat older than the stack, which shows a
    collective."""
    return subject.doing.kind in ("collective", "p2p") and not subject.doing.within("store")


def superseded(process: Process, processes: Iterable[Process]) -> bool:
    """Whether a process has ended and its rank was started again, as torchrun does after a failure (--max-restarts).

    That is so if a live process has the same rank, engine and world size, and was started after the last heartbeat of
    the ended one or belongs to a later attempt. An engine process is recognised by its title, which is gone after its
    end.
    """
    if process.rank is None or not ended(process):
        return False
    return any(
        successor is not process
        and (successor.host, successor.rank, successor.world_size) == (process.host, process.rank, process.world_size)
        and (successor.engine == process.engine or (not process.title and successor.ppid == process.ppid != 0))
        and not ended(successor)
        and _later(process, successor)
        for successor in processes
    )


def _later(process: Process, successor: Process) -> bool:
    if process.beat is not None and successor.age_s > 0:
        return process.beat.age_s > successor.age_s - RESTART_S
    if _attempt(successor) or _attempt(process):
        return _attempt(successor) > _attempt(process)
    # Nothing tells the order. A launcher runs a rank once at a time, so a live one of the same launcher came later.
    return process.role == successor.role and (0 in (process.ppid, successor.ppid) or process.ppid == successor.ppid)


def _attempt(process: Process) -> int:
    return limits.whole_text(process.environ.get("TORCHELASTIC_RESTART_COUNT")) or 0


_TOGETHER = ("collective", "p2p")


def unresolved(
    evidence: Evidence, subjects: dict[str, Subject], known_waits: list[Wait]
) -> tuple[list[Wait], dict[str, Subject]]:
    """Waits of processes for which no other layer found a target.

    A peer of their world that has ended or is held is the one that they miss. If no rank is known to wait, the stacks
    decide: a single peer is outside any collective while all others are in one. A launcher's wait for its ranks says
    nothing of them.
    """
    waited = {wait.waiter for wait in known_waits}
    ranked = [subject for subject in subjects.values() if subject.rank is not None and subject.has_process]
    broken = [
        subject
        for subject in ranked
        if (subject.ended or subject.blocked) and not superseded(subject.process, evidence.processes)
    ]
    waits = [
        wait
        for subject in ranked
        if subject.key not in waited and _may_miss_peer(subject)
        for wait in _waits_for_broken(subject, broken)
    ]
    # Stacks alone are weak evidence, used only if nothing else proved a wait of a rank.
    if not waits and not waited & {subject.key for subject in ranked}:
        # Those in no collective come first: each of them ends the search at once.
        outside_first = sorted(ranked, key=lambda subject: subject.doing.kind in _TOGETHER)
        waits = [wait for subject in ranked for wait in _waits_by_stacks(subject, outside_first)]
    return waits, subjects


def _may_miss_peer(subject: Subject) -> bool:
    """Whether it stands where a peer may be missing. A process that waits for an answer over HTTP misses a server,
    not a rank."""
    if not subject.rests or subject.doing.idle:
        return False
    if subject.pending is None and subject.doing.kind == "http_client":
        return False
    if subject.doing.active and subject.doing.kind != "device":
        return False
    return subject.stuck or subject.doing.kind in ("user", "unknown", "lock", "select")


def _waits_for_broken(subject: Subject, broken: list[Subject]) -> Iterator[Wait]:
    """Yield a wait for each peer of its world that has ended or is held."""
    for peer in broken:
        if peer.key == subject.key or (not subject.stuck and _left_in_order(peer.process, subject.process)):
            continue
        if not may_need(subject, peer):
            continue
        if same_world(subject.process, peer.process):
            how = "has ended" if peer.ended else f"is {peer.blocked}"
            yield Wait(subject.key, peer.key, "process", f"{peer.label} {how}")


def may_need(subject: Subject, peer: Subject) -> bool:
    """Whether a process stands where a peer may be missing that ended without a record.

    In a collective of the world's own group, by the text, each rank is needed, and in one of another group perhaps not.
    Where the text does not tell the group, a peer that ended well may have left it in good order. Who waits for the end
    of its own child misses nobody else.
    """
    if peer.process.is_recorded or peer.process.exit_code is None:
        return True
    if subject.pending is not None or subject.doing.kind not in _TOGETHER:
        return peer.process.exit_code != 0 or subject.doing.kind != "join"
    frames = [frame for frame in subject.process.main_frames if users(frame)]
    group = group_argument(frames, subject.doing.op)
    return group == GroupArgument() or (group is None and peer.process.exit_code != 0)


def _waits_by_stacks(alone: Subject, ranked: list[Subject]) -> list[Wait]:
    """Waits of all peers for a rank that stands in no collective while each of them stands in one. A backward pass that
    rests may be in one."""
    if alone.stuck or motion.in_resting_backward(alone.process):
        return []
    peers = []
    for peer in ranked:
        if peer is alone or not same_world(peer.process, alone.process):
            continue
        # The same rank twice: two worlds, or a restarted rank, or a trainer of one rank and the engine that it started.
        if peer.rank == alone.rank or peer.doing.kind not in _TOGETHER:
            return []
        if not may_need(peer, alone):
            return []
        peers.append(peer)
    return [
        Wait(peer.key, alone.key, "collective", f"{peer.doing.op}: by the stacks alone", operation=peer.doing.op)
        for peer in peers
    ]


def _left_in_order(done: Process, peer: Process) -> bool:
    """Whether a process ended in good order, and `peer` cannot miss it: its program is over as well, or they have no
    group in common, or the groups were destroyed."""
    if not finished(done):
        return False
    if not _in_program(peer):
        return True
    if done.journal is None or peer.journal is None:
        return False
    groups = {group.name for group in done.journal.groups}
    destroyed = done.beat is not None and done.beat.ended and not done.beat.sequences
    return bool(groups) and (destroyed or not groups & {group.name for group in peer.journal.groups})


def _in_program(process: Process) -> bool:
    """Whether the main thread is seen inside its program. At the end of the interpreter, where functions of `atexit`
    run (the last upload of a logger), the module's frame is gone, and so is `run` of a child of multiprocessing."""
    stack = next((look.main_frames for look in reversed(process.samples) if look.threads), ())
    return any(frame.function == "<module>" for frame in stack) or any(map(_runs_child, stack, stack[1:]))


def _runs_child(frame: Frame, caller: Frame) -> bool:
    """Whether a frame runs the program of a child that multiprocessing forked, which has no module's frame."""
    return plain(frame.function) == "run" and caller.file.endswith("/multiprocessing/process.py")


def merged(known_waits: Iterable[Wait], more: Iterable[Wait]) -> list[Wait]:
    """Both lists of waits, without a second edge between the same two processes at the same layer."""
    waits_by_key: dict[tuple[str, str, str], Wait] = {}
    for wait in (*known_waits, *more):
        waits_by_key.setdefault(
            (wait.waiter, wait.target, wait.layer if wait.layer != "collective" else wait.group), wait
        )
    return list(waits_by_key.values())
