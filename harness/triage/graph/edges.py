"""The edges of the wait graph, layer by layer: each function takes what is known and returns edges that it can prove.

A member waits for another one when that one has not come as far in the group (or came with another operation, or never
started it on its device). Gloo's recorder cannot tell started from enqueued, and a sender may be done before its
receivers have come: so a rank is never waited for because it is *ahead*.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from harness.triage.evidence import Evidence, Process
from harness.triage.flight.compare import usual_side
from harness.triage.flight.model import Comparison, GroupState, Mismatch, RankState
from harness.triage.flight.operations import peers
from harness.triage.graph.subjects import Subject, ended, finished
from harness.triage.graph.worlds import same_kind, same_world
from harness.triage.places import plain
from probes.collectives import HELPER, MAKERS, MEETING
from reports.model import Wait

RESTART_S = 1.0  # a heartbeat's period: the last beat of an attempt may lie behind the start of the next one
MAX_TARGETS = (
    64  # edges of one waiter in one group: who has not come is listed in the verdict, not drawn a thousandfold
)


@dataclass(frozen=True)
class Names:
    """Ranks of a group as nodes of the graph."""

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
        """The node of a member: its process, or "rank N" where nobody saw one, or several could be meant."""
        state = group.ranks.get(rank)
        if state is not None and state.key in self.keys:
            return state.key
        if group.joined:
            return f"rank {rank} of {title(group)}"
        holders = self.by_rank.get(rank, ())
        if len(holders) > 1:  # two worlds number their ranks alike: the one of this group's size
            sizes = {len(group.group.members), group.group.world_size} - {0}
            holders = tuple(process for process in holders if process.world_size in sizes) or holders
        return holders[0].key if len(holders) == 1 else f"rank {rank}"


def collective(comparison: Comparison | None, names: Names, subjects: dict[str, Subject]) -> list[Wait]:
    """Who waits for whom by the flight recorders."""
    waits: list[Wait] = []
    for group in comparison.groups if comparison else ():
        waits += _group(group, names, subjects)
        waits += _point_to_point(group, names)
    return waits


def ordered(waits: list[Wait], subjects: dict[str, Subject]) -> tuple[list[Wait], dict[str, Subject]]:
    """Ranks of an idle engine wait for what its first rank is asked, in a broadcast, and that one waits to be asked:
    no collective of theirs is pending."""
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
    # one collection of laggards for each awaited seq, not one for each waiter: groups may have a thousand members
    behind: dict[int, list[int]] = {}
    for rank in group.waiting:
        state = group.ranks[rank]
        assert state.pending is not None
        seq = state.pending.seq
        if seq not in behind:
            behind[seq] = sorted(peer_rank for peer_rank, place in at.items() if place < seq)
        reasons = dict.fromkeys((peer_rank for peer_rank in behind[seq] if peer_rank != rank), "has not come")
        if difference is not None and difference.seq == seq:
            reasons |= dict.fromkeys(_ranks_that_differ(group, difference, rank), f"is in another {difference.field}")
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
    """A send or receive waits for the one at its other end, unless that one has enqueued its half."""
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
    """A group as a person calls it; torch numbers groups that nobody named, and a bare number is read as a count."""
    desc, name = group.group.desc, group.group.name
    if desc and desc != "undefined":
        return desc
    return f"group {name}" if name.isdigit() else name or "a group"


def position(state: RankState) -> int:
    """The seq of the operation that a rank is in, or of the last one that it has done."""
    return state.pending.seq if state.pending is not None else state.enqueued


def mismatch(group: GroupState) -> Mismatch | None:
    """The earliest difference at an operation that somebody still waits for, or before it."""
    waited = [state.pending.seq for state in group.ranks.values() if state.pending is not None]
    differences = [difference for difference in group.mismatches if waited and difference.seq <= max(waited)]
    return min(differences, key=lambda difference: (difference.seq, difference.field != "op")) if differences else None


def _ranks_that_differ(group: GroupState, difference: Mismatch, rank: int) -> list[int]:
    """The ranks that did something else than `rank` there; for a rank that is itself on the odd side, none."""
    mine = next((what for what, ranks in difference.values.items() if rank in ranks), None)
    usual = usual_side(group, difference)
    if mine is None or (usual is not None and mine != usual):
        return []
    return sorted(peer_rank for ranks in difference.values.values() if rank not in ranks for peer_rank in ranks)


def _without_dump(group: GroupState, names: Names, subjects: dict[str, Subject]) -> dict[int, str]:
    """Members whose recorder is missing, unless their stack shows them in a collective too."""
    reasons = {}
    for absent_rank in group.absent:
        its = subjects.get(names.key(group, absent_rank))
        if its is None or not its.observed or its.process is None:
            reasons[absent_rank] = "has no recorder data"
        elif its.ended:
            reasons[absent_rank] = "has ended"
        elif its.blocked or not its.doing.within("collective", "p2p"):
            reasons[absent_rank] = "is not there, by its stack"
    return reasons


def store(
    evidence: Evidence, subjects: dict[str, Subject], known_waits: list[Wait]
) -> tuple[list[Wait], dict[str, Subject]]:
    """Who waits in a rendezvous or in the making of a group, and who has not come there."""
    waits: list[Wait] = []
    subjects = dict(subjects)
    joining = {key: forming(member) for key, member in subjects.items() if forming(member) is not None}
    ranked: dict[int, list[Subject]] = {}
    for subject in subjects.values():
        if subject.rank is not None and subject.process and not superseded(subject.process, evidence.processes):
            ranked.setdefault(subject.rank, []).append(subject)
    for key, what in joining.items():
        assert what is not None
        subject = subjects[key]
        if what.name:
            continue  # who its other members are, nobody recorded
        expected = what.members or (tuple(range(what.world_size)) if what.world_size else ())
        for rank in expected:
            if rank == subject.rank:
                continue
            rank_holders = ranked.get(rank, [])
            counterparts = [holder for holder in rank_holders if same_world(subject.process, holder.process)]
            # who makes the group elsewhere has come to the wrong address, which is another fault
            arrived = [holder for holder in rank_holders if holder.key in joining]
            counterparts = counterparts or [holder for holder in arrived if same_kind(subject.process, holder.process)]
            if not counterparts:
                name = f"rank {rank}"
                subjects.setdefault(name, Subject(name, None, rank, observed=False))
                counterparts = [subjects[name]]
            for counterpart in counterparts:
                if counterpart.key not in joining and counterpart.key != key:
                    because = f"{what.op}: {counterpart.label} has not come"
                    waits.append(Wait(key, counterpart.key, "store", because, what.age_s, operation=what.op))
    return waits, subjects


@dataclass(frozen=True)
class Forming:
    """A group that a process is making. `members`: global ranks, empty where nobody said.

    `name`, `place`: of a group beside torch's register, as of a weight sync, and the own rank in it; it numbers its
    members in a way of its own.
    """

    op: str
    world_size: int = 0
    members: tuple[int, ...] = ()
    age_s: float | None = None
    name: str = ""
    place: int = -1


def forming(subject: Subject) -> Forming | None:
    """The group that this process waits for, by its open spans and its stack; None where it makes none."""
    process = subject.process
    if process is None or subject.ended:
        return None
    spans = process.beat.open_spans if process.beat else ()
    inside = [span for span in spans if span.name in (*MAKERS, MEETING, HELPER) and not _over(subject)]
    if not inside and subject.doing.kind != "store":
        return None
    fields: dict[str, object] = {}
    for span in inside:
        fields = {**span.fields, **fields}
    age_s = inside[0].age_s if inside else None
    name, place, beside = (fields.get(key) for key in ("group_name", "group_rank", "group_size"))
    if (
        isinstance(name, str)
        and name
        and isinstance(place, int)
        and isinstance(beside, int)
        and not _registers(subject)
    ):
        return Forming(name, beside, (), age_s, name, place)
    ranks, size = fields.get("ranks"), fields.get("world_size")
    members = tuple(rank for rank in ranks if isinstance(rank, int)) if isinstance(ranks, list) else ()
    op = inside[0].name if inside else subject.doing.op or "rendezvous"
    world = size if isinstance(size, int) and size > 0 else process.world_size or 0
    if members:
        world = len(members)
    return Forming(op, world, members, age_s)


def _registers(subject: Subject) -> bool:
    """Whether the group goes into torch's register, by the function that makes it: an open span, or a frame."""
    process = subject.process
    assert process is not None
    if process.beat is not None and any(span.name in MAKERS for span in process.beat.open_spans):
        return True
    frames = [frame for sample in process.samples[-1:] for thread in sample.threads for frame in thread.frames]
    return any(plain(frame.function) in MAKERS and "torch/distributed/" in frame.file for frame in frames)


def _over(subject: Subject) -> bool:
    """Whether the group is made by now: a beat is older than the stacks, which show its process in a collective."""
    return subject.doing.kind in ("collective", "p2p") and not subject.doing.within("store")


def superseded(process: Process, processes: Iterable[Process]) -> bool:
    """Whether a process has ended and its rank was started again, as torchrun does after a failure (--max-restarts):
    a live one has its rank, engine and world size, was started after its last heartbeat, or is of a later attempt.
    An engine is known by its title, which is gone with it."""
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
    # nothing tells when: of one launcher, as far as is known, a rank lives once
    return process.role == successor.role and (0 in (process.ppid, successor.ppid) or process.ppid == successor.ppid)


def _attempt(process: Process) -> int:
    count = process.environ.get("TORCHELASTIC_RESTART_COUNT", "")
    return int(count) if count.isdigit() else 0


def unresolved(
    evidence: Evidence, subjects: dict[str, Subject], known_waits: list[Wait]
) -> tuple[list[Wait], dict[str, Subject]]:
    """Waiters of which no layer says for whom: a peer of their world that has ended, or is blocked, is who they miss;
    else, by the stacks alone, a single peer outside any collective while all others are in one."""
    waited = {wait.waiter for wait in known_waits}
    ranked = [subject for subject in subjects.values() if subject.rank is not None and subject.process is not None]
    broken = [
        subject
        for subject in ranked
        if subject.process
        and (subject.ended or subject.blocked)
        and not superseded(subject.process, evidence.processes)
    ]
    waits = [
        wait
        for subject in ranked
        if subject.key not in waited and _may_miss_peer(subject)
        for wait in _waits_for_broken(subject, broken)
    ]
    if not waits and not known_waits:
        waits = [wait for subject in ranked for wait in _waits_by_stacks(subject, ranked)]
    return waits, subjects


def _may_miss_peer(subject: Subject) -> bool:
    """It stands where a peer may be missing. Who waits for an answer over HTTP misses a server, and no rank."""
    if subject.ended or subject.blocked or subject.progress or subject.doing.idle:
        return False
    if subject.pending is None and subject.doing.kind == "http_client":
        return False
    if subject.doing.active and subject.doing.kind != "device":
        return False
    return subject.stuck or subject.doing.kind in ("user", "unknown", "lock", "select")


def _waits_for_broken(subject: Subject, broken: list[Subject]) -> Iterator[Wait]:
    """A wait for each peer of its world that has ended or is blocked."""
    for peer in broken:
        if peer.key == subject.key or (not subject.stuck and _left_in_order(peer.process, subject.process)):
            continue
        if same_world(subject.process, peer.process):
            how = "has ended" if peer.ended else f"is {peer.blocked}"
            yield Wait(subject.key, peer.key, "process", f"{peer.label} {how}")


def _waits_by_stacks(alone: Subject, ranked: list[Subject]) -> list[Wait]:
    """Waits of all its peers for a rank, where they stand in collectives and it stands in none."""
    peers = [subject for subject in ranked if subject is not alone and same_world(subject.process, alone.process)]
    if any(peer.rank == alone.rank for peer in peers):
        return []  # they are of two worlds, or it is replaced: a trainer of one rank, and the engine that it started
    if alone.stuck or not peers or not all(peer.doing.kind in ("collective", "p2p") for peer in peers):
        return []
    return [
        Wait(peer.key, alone.key, "collective", f"{peer.doing.op}: by the stacks alone", operation=peer.doing.op)
        for peer in peers
    ]


def _left_in_order(done: Process | None, peer: Process | None) -> bool:
    """Whether a process ended in good order, and took part in groups, and the other one has none in common with it:
    it was in none of them, or the first one destroyed its groups before it ended."""
    if done is None or peer is None or not finished(done) or done.journal is None or peer.journal is None:
        return False
    groups = {group.name for group in done.journal.groups}
    destroyed = done.beat is not None and done.beat.ended and not done.beat.sequences
    return bool(groups) and (destroyed or not groups & {group.name for group in peer.journal.groups})


def merged(known_waits: Iterable[Wait], more: Iterable[Wait]) -> list[Wait]:
    """Both, without a second edge between the same two at the same layer."""
    waits_by_key: dict[tuple[str, str, str], Wait] = {}
    for wait in (*known_waits, *more):
        waits_by_key.setdefault(
            (wait.waiter, wait.target, wait.layer if wait.layer != "collective" else wait.group), wait
        )
    return list(waits_by_key.values())
