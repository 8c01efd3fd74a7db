"""The edges of the wait graph, layer by layer: each function takes what is known and returns edges that it can prove.

A member waits for another one when that one has not come as far in the group (or came with another operation, or never
started it on its device). Gloo's recorder cannot tell started from enqueued, and a sender may be done before its
receivers have come: so a rank is never waited for because it is *ahead*.
"""

from __future__ import annotations

from collections.abc import Iterable
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
            {rank: tuple(some) for rank, some in ranks.items()},
        )

    def key(self, group: GroupState, rank: int) -> str:
        """The node of a member: its process, or "rank N" where nobody saw one, or several could be meant."""
        state = group.ranks.get(rank)
        if state is not None and state.key in self.keys:
            return state.key
        if group.joined:
            return f"rank {rank} of {title(group)}"
        some = self.by_rank.get(rank, ())
        if len(some) > 1:  # two worlds number their ranks alike: the one of this group's size
            sizes = {len(group.group.members), group.group.world_size} - {0}
            some = tuple(process for process in some if process.world_size in sizes) or some
        return some[0].key if len(some) == 1 else f"rank {rank}"


def collective(comparison: Comparison | None, names: Names, subjects: dict[str, Subject]) -> list[Wait]:
    """Who waits for whom by the flight recorders."""
    found: list[Wait] = []
    for group in comparison.groups if comparison else ():
        found += _group(group, names, subjects)
        found += _point_to_point(group, names)
    return found


def ordered(found: list[Wait], subjects: dict[str, Subject]) -> tuple[list[Wait], dict[str, Subject]]:
    """Ranks of an idle engine wait for what its first rank is asked, in a broadcast, and that one waits to be asked:
    no collective of theirs is pending."""
    targets: dict[str, list[Subject]] = {}
    for wait in found:
        targets.setdefault(wait.waiter, []).append(subjects[wait.target])
    idle = {
        key: replace(subjects[key], pending=None, doing=replace(subjects[key].doing, kind="orders"))
        for key, some in targets.items()
        if subjects[key].doing.kind == "collective" and subjects[key].doing.around[:1] == ("orders",)
        if all(one.doing.idle and one.doing.within("orders") and not one.stuck and not one.blocked for one in some)
    }
    return [wait for wait in found if wait.waiter not in idle], {**subjects, **idle}


def _group(group: GroupState, names: Names, subjects: dict[str, Subject]) -> list[Wait]:
    at = {rank: position(state) for rank, state in group.ranks.items()}
    at |= {rank: -1 for rank in group.silent if rank not in group.unsure}
    odd = mismatch(group)
    found = []
    # one collection of laggards for each awaited seq, not one for each waiter: groups may have a thousand members
    behind: dict[int, list[int]] = {}
    for rank in group.waiting:
        state = group.ranks[rank]
        assert state.pending is not None
        seq = state.pending.seq
        if seq not in behind:
            behind[seq] = sorted(other for other, place in at.items() if place < seq)
        reasons = dict.fromkeys((other for other in behind[seq] if other != rank), "has not come")
        if odd is not None and odd.seq == seq:
            reasons |= dict.fromkeys(_others(group, odd, rank), f"is in another {odd.field}")
        if not reasons and state.pending.started:
            reasons = {
                other: "has not started it on its device"
                for other, its in group.ranks.items()
                if other != rank and its.pending is not None and its.pending.seq == seq and not its.pending.started
            }
        if not reasons:
            reasons = _without_dump(group, names, subjects)
        operation = f"{state.pending.op} #{seq} of {title(group)}"
        for other, why in list(reasons.items())[:MAX_TARGETS]:
            waiter, target = names.key(group, rank), names.key(group, other)
            if waiter != target:
                its = subjects.get(target)
                who = f"rank {other}" if its is None or its.alone else its.label
                because = f"{operation}: {who} {why}"
                found.append(
                    Wait(
                        waiter,
                        target,
                        "collective",
                        because,
                        state.pending.age_s,
                        group.group.name,
                        seq,
                        operation,
                    )
                )
    return found


def _point_to_point(group: GroupState, names: Names) -> list[Wait]:
    """A send or receive waits for the one at its other end, unless that one has enqueued its half."""
    halves = {(peers(one.op), one.op.partition(" ")[0]) for some in group.p2p.values() for one in some}
    found = []
    for rank, some in group.p2p.items():
        one, ends = some[0], peers(some[0].op)
        what = one.op.partition(" ")[0]
        place = None if ends is None else ends[1] if what == "send" else ends[0]
        if place is None or place >= len(group.group.members) or (ends, "recv" if what == "send" else "send") in halves:
            continue
        other = group.group.members[place]
        operation = f"{one.op} #{one.seq} of {title(group)}"
        because = f"{operation}: rank {other} has not come"
        waiter, target = names.key(group, rank), names.key(group, other)
        found.append(Wait(waiter, target, "collective", because, one.age_s, group.group.name, one.seq, operation))
    return found


def title(group: GroupState) -> str:
    """A group as a person calls it."""
    desc = group.group.desc
    return desc if desc and desc != "undefined" else group.group.name or "a group"


def position(state: RankState) -> int:
    """The seq of the operation that a rank is in, or of the last one that it has done."""
    return state.pending.seq if state.pending is not None else state.enqueued


def mismatch(group: GroupState) -> Mismatch | None:
    """The earliest difference at an operation that somebody still waits for, or before it."""
    waited = [state.pending.seq for state in group.ranks.values() if state.pending is not None]
    found = [one for one in group.mismatches if waited and one.seq <= max(waited)]
    return min(found, key=lambda one: (one.seq, one.field != "op")) if found else None


def _others(group: GroupState, odd: Mismatch, rank: int) -> list[int]:
    """The ranks that did something else than `rank` there; for a rank that is itself on the odd side, none."""
    mine = next((what for what, ranks in odd.values.items() if rank in ranks), None)
    usual = usual_side(group, odd)
    if mine is None or (usual is not None and mine != usual):
        return []
    return sorted(other for ranks in odd.values.values() if rank not in ranks for other in ranks)


def _without_dump(group: GroupState, names: Names, subjects: dict[str, Subject]) -> dict[int, str]:
    """Members whose recorder is missing, unless their stack shows them in a collective too."""
    found = {}
    for other in group.absent:
        its = subjects.get(names.key(group, other))
        if its is None or not its.seen or its.process is None:
            found[other] = "has no recorder data"
        elif its.gone:
            found[other] = "has ended"
        elif its.blocked or not its.doing.within("collective", "p2p"):
            found[other] = "is not there, by its stack"
    return found


def store(evidence: Evidence, subjects: dict[str, Subject], known: list[Wait]) -> tuple[list[Wait], dict[str, Subject]]:
    """Who waits in a rendezvous or in the making of a group, and who has not come there."""
    found: list[Wait] = []
    subjects = dict(subjects)
    joining = {key: forming(one) for key, one in subjects.items() if forming(one) is not None}
    ranked: dict[int, list[Subject]] = {}
    for one in subjects.values():
        if one.rank is not None and one.process and not superseded(one.process, evidence.processes):
            ranked.setdefault(one.rank, []).append(one)
    for key, what in joining.items():
        assert what is not None
        one = subjects[key]
        if what.name:
            continue  # who its other members are, nobody recorded
        expected = what.members or (tuple(range(what.world_size)) if what.world_size else ())
        for rank in expected:
            if rank == one.rank:
                continue
            alike = ranked.get(rank, [])
            others = [other for other in alike if same_world(one.process, other.process)]
            # who makes the group elsewhere has come to the wrong address, which is another fault
            arrived = [other for other in alike if other.key in joining]
            others = others or [other for other in arrived if same_kind(one.process, other.process)]
            if not others:
                name = f"rank {rank}"
                subjects.setdefault(name, Subject(name, None, rank, seen=False))
                others = [subjects[name]]
            for other in others:
                if other.key not in joining and other.key != key:
                    because = f"{what.op}: {other.label} has not come"
                    found.append(Wait(key, other.key, "store", because, what.age_s, operation=what.op))
    return found, subjects


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


def forming(one: Subject) -> Forming | None:
    """The group that this process waits for, by its open spans and its stack; None where it makes none."""
    process = one.process
    if process is None or one.gone:
        return None
    spans = process.beat.open_spans if process.beat else ()
    inside = [span for span in spans if span.name in (*MAKERS, MEETING, HELPER) and not _over(one)]
    if not inside and one.doing.kind != "store":
        return None
    fields: dict[str, object] = {}
    for span in inside:
        fields = {**span.fields, **fields}
    age_s = inside[0].age_s if inside else None
    name, place, beside = (fields.get(key) for key in ("group_name", "group_rank", "group_size"))
    if isinstance(name, str) and name and isinstance(place, int) and isinstance(beside, int) and not _registers(one):
        return Forming(name, beside, (), age_s, name, place)
    ranks, size = fields.get("ranks"), fields.get("world_size")
    members = tuple(rank for rank in ranks if isinstance(rank, int)) if isinstance(ranks, list) else ()
    op = inside[0].name if inside else one.doing.op or "rendezvous"
    world = size if isinstance(size, int) and size > 0 else process.world_size or 0
    if members:
        world = len(members)
    return Forming(op, world, members, age_s)


def _registers(one: Subject) -> bool:
    """Whether the group goes into torch's register, by the function that makes it: an open span, or a frame."""
    process = one.process
    assert process is not None
    if process.beat is not None and any(span.name in MAKERS for span in process.beat.open_spans):
        return True
    frames = [frame for sample in process.samples[-1:] for thread in sample.threads for frame in thread.frames]
    return any(plain(frame.function) in MAKERS and "torch/distributed/" in frame.file for frame in frames)


def _over(one: Subject) -> bool:
    """Whether the group is made by now: a beat is older than the stacks, which show its process in a collective."""
    return one.doing.kind in ("collective", "p2p") and not one.doing.within("store")


def superseded(process: Process, processes: Iterable[Process]) -> bool:
    """Whether a process has ended and its rank was started again, as torchrun does after a failure (--max-restarts):
    a live one has its rank, engine and world size, was started after its last heartbeat, or is of a later attempt.
    An engine is known by its title, which is gone with it."""
    if process.rank is None or not ended(process):
        return False
    return any(
        other is not process
        and (other.host, other.rank, other.world_size) == (process.host, process.rank, process.world_size)
        and (other.engine == process.engine or (not process.title and other.ppid == process.ppid != 0))
        and not ended(other)
        and _later(process, other)
        for other in processes
    )


def _later(process: Process, other: Process) -> bool:
    if process.beat is not None and other.age_s > 0:
        return process.beat.age_s > other.age_s - RESTART_S
    if _attempt(other) or _attempt(process):
        return _attempt(other) > _attempt(process)
    # nothing tells when: of one launcher, as far as is known, a rank lives once
    return process.role == other.role and (0 in (process.ppid, other.ppid) or process.ppid == other.ppid)


def _attempt(process: Process) -> int:
    count = process.environ.get("TORCHELASTIC_RESTART_COUNT", "")
    return int(count) if count.isdigit() else 0


def unresolved(
    evidence: Evidence, subjects: dict[str, Subject], known: list[Wait]
) -> tuple[list[Wait], dict[str, Subject]]:
    """Waiters of which no layer says for whom: a peer of their world that has ended, or is blocked, is who they miss;
    else, by the stacks alone, a single peer outside any collective while all others are in one."""
    found = []
    waited = {wait.waiter for wait in known}
    ranked = [one for one in subjects.values() if one.rank is not None and one.process is not None]
    broken = [
        one
        for one in ranked
        if one.process and (one.gone or one.blocked) and not superseded(one.process, evidence.processes)
    ]
    for one in ranked:
        if one.key in waited or one.gone or one.blocked or one.progress or one.doing.idle:
            continue
        if one.pending is None and one.doing.kind == "http_client":
            continue  # it misses a server, and no rank
        if not (one.stuck or one.doing.kind in ("user", "unknown", "lock", "select")) or (
            one.doing.active and one.doing.kind != "device"
        ):
            continue
        for other in broken:
            if other.key == one.key or (not one.stuck and _left_in_order(other.process, one.process)):
                continue
            if same_world(one.process, other.process):
                how = "has ended" if other.gone else f"is {other.blocked}"
                found.append(Wait(one.key, other.key, "process", f"{other.label} {how}"))
    if found or known:
        return found, subjects
    for alone in ranked:
        peers = [one for one in ranked if one is not alone and same_world(one.process, alone.process)]
        if any(one.rank == alone.rank for one in peers):
            continue  # they are of two worlds, or it is replaced: a trainer of one rank, and the engine that it started
        if alone.stuck or not peers or not all(one.doing.kind in ("collective", "p2p") for one in peers):
            continue
        found += [
            Wait(one.key, alone.key, "collective", f"{one.doing.op}: by the stacks alone", operation=one.doing.op)
            for one in peers
        ]
    return found, subjects


def _left_in_order(done: Process | None, other: Process | None) -> bool:
    """Whether a process ended in good order, and took part in groups, and the other one has none in common with it:
    it was in none of them, or the first one destroyed its groups before it ended."""
    if done is None or other is None or not finished(done) or done.journal is None or other.journal is None:
        return False
    groups = {group.name for group in done.journal.groups}
    destroyed = done.beat is not None and done.beat.ended and not done.beat.sequences
    return bool(groups) and (destroyed or not groups & {group.name for group in other.journal.groups})


def merged(known: Iterable[Wait], more: Iterable[Wait]) -> list[Wait]:
    """Both, without a second edge between the same two at the same layer."""
    found: dict[tuple[str, str, str], Wait] = {}
    for wait in (*known, *more):
        found.setdefault((wait.waiter, wait.target, wait.layer if wait.layer != "collective" else wait.group), wait)
    return list(found.values())
