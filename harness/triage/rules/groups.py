"""Rules about process groups: operations that differ (K1, K3, K10), rings of groups (K2), operations that never end
(K12)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from harness.triage import gate_text, source
from harness.triage.evidence import Frame
from harness.triage.flight.compare import lag, usual_side
from harness.triage.flight.flight import COUNTED
from harness.triage.flight.model import Collective, GroupState, Mismatch
from harness.triage.graph import Subject
from harness.triage.graph.edges import Names, mismatch, title
from harness.triage.graph.worlds import same_world
from harness.triage.places import match, users
from harness.triage.rules import standing
from harness.triage.rules.absence import trip
from harness.triage.rules.apart import ONE_GROUP_EACH, collectives_beside, left_out
from harness.triage.rules.escapes import escaped
from harness.triage.rules.nodes import network, ping, severed
from harness.triage.rules.ruling import NO_MAJORITY, Case, Ruling
from harness.triage.stacks import classify
from reports.model import Wait
from reports.text import agreeing

# Field of a mismatch -> what all ranks do, and what the few do.
_DIFFERENT = {
    "op": ("run different operations", "another one"),
    "sizes": ("give different sizes", "others"),
    "dtype": ("give different data types", "another one"),
}
_COUNT = "count the operations of one step on each rank: batches, microbatches, parameters with a gradient"
_PRINT = "print the shape and data type of the tensor at that call on each rank: one may have left out a call before it"
_DETAIL = "TORCH_DISTRIBUTED_DEBUG=DETAIL COMMAND   # compares operations as they are enqueued"
_OUT_OF_THE_BRANCH = "take the collective out of the branch, or let every rank run it"
# How many ranks have to agree for each that deviates, where nothing but their number is known. What hits ranks in
# pairs, as a node or a tensor parallel pair, makes two of three deviate alike as easily as one. Chosen: three to one.
MAJORITY = 3
ARRIVAL_S = 1.0  # a younger operation may just be on its way


@dataclass(frozen=True)
class _Divergence:
    """Ranks of a group that run different operations at the same position of its sequence.

    `sides`: what is run -> the ranks that run it. `usual`: the side that is right; None if nothing tells.
    """

    case: Case
    group: GroupState
    difference: Mismatch
    sides: Mapping[str, list[Subject]]
    usual: str | None

    @classmethod
    def oldest(cls, case: Case) -> _Divergence | None:
        """The one whose operation is pending for the longest time: it is nearest to the cause, and later ones may
        follow from it."""
        differences = [(group, difference) for group in case.groups if (difference := mismatch(group)) is not None]
        if not differences:
            return None
        group, difference = max(differences, key=lambda pair: _longest(pair[0]))
        names = Names.of(case.evidence, case.comparison)
        sides = {
            what: [case.subject(names.key(group, rank)) for rank in ranks] for what, ranks in difference.values.items()
        }
        usual = usual_side(group, difference)
        divergence = cls(case, group, difference, sides, usual)
        return divergence if usual is None or divergence._is_decided(usual) else replace(divergence, usual=None)

    def _is_decided(self, usual: str) -> bool:
        """Whether something says that this side is right: enough ranks that agree, another sign than their number, the
        habits of all, or stacks of those that deviate, which other rules have read."""
        values = self.difference.values
        deviating = [rank for what, ranks in values.items() if what != usual for rank in ranks]
        by_number = all(len(ranks) < len(values[usual]) for what, ranks in values.items() if what != usual)
        if not by_number or len(values[usual]) >= MAJORITY * len(deviating) or self.difference.usual == usual:
            return True
        if self.group.group.backend in COUNTED and lag(self.group, frozenset(deviating)):
            return True
        have_stacks = all(
            each.doing.kind != "unknown" for what, side in self.sides.items() if what != usual for each in side
        )
        return have_stacks or self._by_habit(values[usual], deviating)

    def _by_habit(self, agreeing: Sequence[int], deviating: Sequence[int]) -> bool:
        """Whether these ranks do what they have always done, and those do for the first time what they do now."""
        habits = self.case.comparison.habits if self.case.comparison else {}
        its = [habits.get(self.group.ranks[rank].key) for rank in (*agreeing, *deviating) if rank in self.group.ranks]
        kept = [each.kept if each is not None else None for each in its]
        return kept == [True] * len(agreeing) + [False] * len(deviating)

    @property
    def place(self) -> str:
        return f"#{self.difference.seq} of {title(self.group)}"

    @property
    def members(self) -> list[Subject]:
        return [member for side in self.sides.values() for member in side]

    def what(self, subject: Subject) -> str:
        """What a rank runs."""
        return next(what for what, side in self.sides.items() if subject in side)

    def lines(self) -> tuple[str, ...]:
        """Each side, in words."""
        joining = "in" if self.difference.field == "op" else "with"
        return tuple(
            f"{self.case.names(member.key for member in side)} {joining} {what}" for what, side in self.sides.items()
        )


def diverged(case: Case) -> Ruling | None:
    """K10, K3 or K1: at the same position in a group's sequence, the ranks run different operations."""
    divergence = _Divergence.oldest(case)
    if divergence is None:
        return None
    if in_both := [member for member in divergence.members if _in_all(member, divergence.difference)]:
        return _of_two_threads(case, divergence.group, in_both, divergence.members)
    if special := _in_own_work(divergence):
        return _alone(divergence, special)
    return _of_most(divergence) or _apart(divergence)


def _in_own_work(divergence: _Divergence) -> list[Subject]:
    """The few ranks in work of their own (a checkpoint, a branch on the rank). Without a majority the source text has
    to prove it, because the name of a function is too weak."""
    usual, members = divergence.usual, divergence.members
    special = [member for member in members if (_proven if usual is None else _rank_only)(member)]
    may_be_blamed = usual is None or _are_minority(special, divergence.sides, usual)
    return special if len(special) < len(members) and may_be_blamed else []


def _alone(divergence: _Divergence, special: list[Subject]) -> Ruling:
    """K10: ranks in work of their own run a collective that the others do not."""
    place = divergence.place
    why = {
        member.key: f"runs {divergence.what(member)} at {place} in work that it does alone{_condition(member)}"
        for member in special
    }
    return Ruling(
        "HUNG",
        f"a collective that only {divergence.case.names(why)} runs, at {place}",
        "K10",
        why,
        place=place,
        evidence=divergence.lines(),
        next=(_OUT_OF_THE_BRANCH,),
    )


def _of_most(divergence: _Divergence) -> Ruling | None:
    """K10: most ranks stand under a condition on the rank, and the few do not. The branch is at fault, and nobody."""
    sides, usual = divergence.sides, divergence.usual
    most = sides[usual] if usual is not None else []
    few = [member for member in divergence.members if member not in most]
    if not most or not all(map(_condition, most)) or any(map(_condition, few)):
        return None
    most_names, few_names = (divergence.case.names(member.key for member in side) for side in (most, few))
    apart = f"{most_names} are there{_condition(most[0])}; {few_names} {agreeing(len(few), 'is', 'are')} not"
    return Ruling(
        "HUNG",
        f"only {most_names} run {usual} at {divergence.place}, in a branch on the rank",
        "K10",
        place=divergence.place,
        evidence=(apart, *divergence.lines()),
        next=(_OUT_OF_THE_BRANCH,),
    )


def _apart(divergence: _Divergence) -> Ruling:
    """K3 or K1: the ranks are at different places of one program."""
    case, members = divergence.case, divergence.members
    # Inside an engine's scheduler a difference is a branch of one rank (K3); elsewhere the ranks made a different
    # number of calls (K1).
    kind = "K3" if all(member.doing.within("scheduler") for member in members) else "K1"
    why, lines = _deviating(divergence), divergence.lines()
    by_text = left_out(case, standing.places_of(members)) if kind == "K1" else None
    if by_text is not None and (not why or by_text.culprits.keys() == why.keys()):
        return replace(by_text, evidence=(*by_text.evidence, *lines))
    by_error = escaped(case, standing.places_of(members)) if kind == "K1" else None
    if by_error is not None and (not why or by_error.culprits.keys() == why.keys()):
        return replace(by_error, hang="K1", evidence=(*by_error.evidence, *lines))
    differ, other = _DIFFERENT[divergence.difference.field]
    return Ruling(
        "HUNG",
        f"the ranks {differ} at {divergence.place}" + (f": {case.names(why)} {other}" if why else ""),
        kind,
        why,
        place=divergence.place,
        evidence=lines if why else (*lines, _nobody(divergence)),
        next=(_COUNT, _DETAIL) if divergence.difference.field == "op" else (_PRINT,),
    )


def _nobody(divergence: _Divergence) -> str:
    """Why nobody is named, in words."""
    counts = sorted((len(side) for side in divergence.sides.values()), reverse=True)
    if len(counts) < 2 or counts[0] == counts[1]:
        return NO_MAJORITY
    others = " to ".join(map(str, counts))
    return f"{others} ranks are too few to say who is right, so nobody is named"


def _deviating(divergence: _Divergence) -> dict[str, str]:
    """Each rank that runs another operation than most -> what it runs; nobody where there is no majority."""
    if divergence.usual is None:
        return {}
    expected = _others_run(divergence.group, divergence.difference, divergence.usual)
    return {
        member.key: f"runs {_with(divergence.difference, what)} at {divergence.place}, where {expected}"
        for what, members in divergence.sides.items()
        for member in members
        if what != divergence.usual
    }


def _in_all(member: Subject, difference: Mismatch) -> bool:
    """Whether threads of a rank stand in each of the operations that differ, all of them at once."""
    threads = collectives_beside(member) if member.doing.kind == "collective" else []
    operations = {member.doing.op, *(classify(thread).op for thread in threads)}
    return difference.field == "op" and operations >= difference.values.keys()


def _of_two_threads(case: Case, group: GroupState, in_both: Sequence[Subject], members: Sequence[Subject]) -> Ruling:
    """K2: several threads of some ranks use one group, and their operations are in no order that the ranks share.

    `in_both`: the ranks whose threads stand in all of the operations that differ.
    """
    places = standing.places_of(members)
    words = standing.places_of(in_both)[0].words
    return Ruling(
        "HUNG",
        f"two threads of {case.names(member.key for member in in_both)} use {title(group)} at once: {words}",
        "K2",
        place="; ".join(f"{place.who} at {place.words}" for place in places),
        waiting={member.key: place.words for place in places for member in place.subjects},
        evidence=tuple(standing.line(case, place, None) for place in places[: standing.MAX_LINES]),
        next=(ONE_GROUP_EACH,),
    )


def _others_run(group: GroupState, difference: Mismatch, usual: str) -> str:
    """Why the other side is taken to be right, in words."""
    count, side = len(difference.values[usual]), _with(difference, usual)
    if all(len(ranks) < count for what, ranks in difference.values.items() if what != usual):
        return f"{count} others run {side}"
    if difference.usual == usual:
        return f"the other groups of {title(group)} run {side}"
    return f"a peer that is further runs {side}"


def _with(difference: Mismatch, what: str) -> str:
    """What a side runs: an operation, or the operation of all with other sizes."""
    return what if difference.field == "op" else f"it with {what}"


def _longest(group: GroupState) -> float:
    return max((state.pending.age_s or 0.0 for state in group.ranks.values() if state.pending), default=0.0)


def _rank_only(subject: Subject) -> bool:
    """Whether it is in work that few ranks do, by the name of a function or by a condition on the rank. A name is
    enough if the numbers already say who is odd."""
    return _by_name(subject) or bool(_condition(subject))


def _by_name(subject: Subject) -> bool:
    """Whether it is in a checkpoint or an evaluation, and the text does not show that every rank comes there."""
    frames = [frame for frame in subject.process.main_frames if users(frame)]
    return subject.doing.within("checkpoint", "evaluation") and not gate_text.in_every_ranks_way(frames)


def _proven(subject: Subject) -> bool:
    """Whether the source text or a library's own frame (torch.save, save_pretrained) proves that it does work of few
    ranks. A user's function can have any name, so a name alone breaks no tie."""
    saves = (match(frame) for frame in subject.process.main_frames)
    return bool(_condition(subject)) or any(
        entry is not None and entry.kind == "checkpoint" and entry.file != "<user>" for entry in saves
    )


def _condition(subject: Subject) -> str:
    """The condition on the rank under which it got there, in words, if the source text shows one."""
    for frame in filter(users, subject.process.main_frames):
        if text := source.rank_condition(frame):
            return f", under `if {text}`"
    return ""


def _are_minority(special: list[Subject], sides: Mapping[str, list[Subject]], usual: str) -> bool:
    """Whether `special` may be blamed: none of them does what most ranks do, and they are either all the ranks that
    deviate or all proven by the source text."""
    most = {subject.key for subject in sides[usual]}
    deviating_keys = {subject.key for side in sides.values() for subject in side} - most
    keys = {subject.key for subject in special}
    return not keys & most and (keys == deviating_keys or all(map(_proven, special)))


def conditional(case: Case) -> Ruling | None:
    """K10: few ranks wait in a collective of work that the others do not do, and the others have gone on to the next
    operation."""
    rings = [members for members, _ in _inversions(case)]
    for waiter in case.graph.stuck():
        if not _rank_only(waiter) or not (waiter.pending is not None or waiter.doing.kind == "collective"):
            continue
        if not _by_name(waiter) and any(waiter.key in ring for ring in rings):
            continue  # a ring over several groups: `inverted` reports it and names nobody
        awaited = [case.subject(wait.target) for wait in case.graph.waits if wait.waiter == waiter.key]
        targets = awaited or _elsewhere(case, waiter)
        special_waiters = [peer for peer in case.graph.stuck() if _by_name(peer)]
        went_on = all(target.stuck and not _rank_only(target) for target in targets)
        if (
            targets
            and went_on
            and len(special_waiters) < len(targets) + _proven(waiter)  # the name of a function alone breaks no tie
            and not case.moving(target.key for target in targets)
        ):
            place = case.waited_in(target.key for target in awaited) or waiter.doing.op
            why = f"waits in {place} in work that it does alone{_condition(waiter)}, while the others have gone on"
            return Ruling(
                "HUNG",
                f"a collective that only {waiter.label} runs: {place}",
                "K10",
                {waiter.key: why},
                place=place,
                next=(_OUT_OF_THE_BRANCH,),
            )
    return None


def _elsewhere(case: Case, subject: Subject) -> list[Subject]:
    """Without any recorder: all other ranks of its world, if the stack of each shows another collective; else none."""
    if any(group.ranks for group in case.groups) or subject.rank is None or not subject.has_process:
        return []
    world = subject.process.world_size
    peers = [
        peer
        for peer in case.live()
        if peer is not subject and peer.rank is not None and peer.process.world_size == world
    ]
    apart = [peer for peer in peers if peer.doing.kind == "collective" and peer.doing.op != subject.doing.op]
    return apart if len(apart) == len(peers) else []


def _inversions(case: Case) -> Iterator[tuple[tuple[str, ...], list[Wait]]]:
    """Yield each ring of waits that goes over several groups and in which nothing moves, with its waits."""
    for members in case.rings():
        inside = set(members)
        waits = [wait for wait in case.graph.waits if wait.waiter in inside and wait.target in inside]
        several = {wait.layer for wait in waits} == {"collective"} and len({wait.group for wait in waits}) > 1
        if several and not case.moving(members):
            yield tuple(members), waits


def inverted(case: Case) -> Ruling | None:
    """K2: a ring of waits over several groups.

    Each rank is as right as the others, so nobody is named, with two exceptions. A rank is named if it alone does
    something that it never did before at that point. The ruling is K1 if one rank alone has left the loop of all
    others, or goes round it alone.
    """
    for members, waits in _inversions(case):
        if (ruling := _out_of_step(case, waits)) is not None:
            return replace(ruling, absent=members)
        steps = [
            next((wait for wait in waits if wait.waiter == key and wait.target == after), None)
            for key, after in zip(members, (*members[1:], members[0]), strict=True)
        ]
        description = "; ".join(f"{case.names([step.waiter])} in {step.place}" for step in steps if step)
        why = _departed(case, members)
        who = f"{case.names(why)} alone departs from its habit" if why else f"a cycle of {case.names(members)}"
        return Ruling(
            "HUNG",
            f"groups are used in different orders: {who}",
            "K2",
            why,
            cycle=() if why else members,
            absent=members,
            place=description,
            evidence=(description,),
            next=(
                *(("look for a call that is skipped, made twice or made in another group: a condition, a caught error",)
                  if why else ()),
                "use the groups in one order on every rank: order by name, not by arrival",
                "the frames of the cycle's members are the two places to compare",
            ),
        )  # fmt: skip
    return None


def _out_of_step(case: Case, waits: list[Wait]) -> Ruling | None:
    """K1: one rank of a ring has left a loop in which the others go round, or goes round after they have left it.

    The source text decides. The two ranks of a wait form no majority, so the other ranks that stand in that loop or
    behind it do, and every rank of the world must have been seen.
    """
    places = {subject.key: _place(subject) for subject in case.graph.subjects.values() if subject.rank is not None}
    pairs = {(places.get(wait.target, ()), places.get(wait.waiter, ())): wait for wait in waits}
    for (target_place, goes), wait in pairs.items():
        line = _behind(target_place, goes)
        missed = case.subject(wait.target)
        recorded_size = case.comparison.world_size if case.comparison else None
        size = missed.process.world_size if missed.has_process else recorded_size
        world = {key: case.subject(key).rank for key in places if same_world(case.subject(key).process, missed.process)}
        if not line or len(set(world.values())) != size or not all(places[key] for key in world):
            continue
        past = [key for key in world if _behind(places[key], goes) == line]
        inside = [key for key in world if _behind(target_place, places[key]) == line]
        if past == [wait.target] and len(inside) > 1:
            how, contrast = f"has left the loop at line {line}", f"in which {len(inside)} others go round"
        elif inside == [wait.waiter] and len(past) > 1 and _together(case, past):
            how, contrast = f"goes round the loop at line {line}", f"which {len(past)} others have left"
        else:
            continue
        [key] = past if len(past) == 1 else inside
        return trip({key: f"{how}, {contrast}: {case.subject(key).state()}"}, case, wait.place, how=how)
    return None


def _place(subject: Subject) -> tuple[Frame, ...]:
    """The user's frames of the operation that a rank is in, by its recorder; else by its stack, if that shows a wait
    in a collective or for the device."""
    frames = subject.pending.frames if subject.pending is not None else ()
    if not frames and subject.doing.kind in ("collective", "device"):
        frames = subject.process.main_frames
    return tuple(frame for frame in frames if users(frame))


def _together(case: Case, keys: list[str]) -> bool:
    """Whether all of them wait in the same operation. Otherwise a host may run ahead: it has left a loop in which
    its device still is, and that proves nothing."""
    pending = [case.subject(key).pending for key in keys]
    return len({(operation.group, operation.seq) for operation in pending if operation}) == 1 and all(pending)


def _behind(place: tuple[Frame, ...], peer_place: tuple[Frame, ...]) -> int:
    lines = (source.behind_loop(mine, its) for mine in place for its in peer_place)
    return next((line for line in lines if line), 0)


def _departed(case: Case, members: tuple[str, ...]) -> dict[str, str]:
    """Find the one member of a ring that departs from its habit: {node: reason}, or {} if it may be right.

    Its habit is what it always did when its operations stood as they stand now. What all ranks do for the first time,
    such as an evaluation or a checkpoint, is no mistake. So every other member of the ring must have kept its habit,
    and so must the ranks beside the ring that do the same work, such as the ranks of another replica. If there are none
    beside it, three things must hold: the rank began what it always did, it left out the rest, and it stands where the
    source text continues after any error. Then no other rank can have told it to depart.
    """
    habits = case.comparison.habits if case.comparison else {}
    deviating_keys = [key for key in members if key in habits and not habits[key].kept]
    if len(deviating_keys) != 1 or any(key not in habits for key in members):
        return {}
    habit = habits[deviating_keys[0]]
    beside = [key for key, its in habits.items() if key not in members and its.does_same_work(habit)]
    handler = source.outlives_error(_place(case.subject(deviating_keys[0]))) if habit.cut and not beside else 0
    if not (beside or handler) or not all(habits[key].kept for key in beside):
        return {}
    titles = {state.group.name: title(state) for state in case.groups}
    then, now = (
        f"{op} of {titles.get(group, group)}"
        for op, group in ((habit.op, habit.group), (habit.now_op, habit.now_group))
    )
    return {
        deviating_keys[0]: f"is in {now}, where it ran {then} {habit.times} times out of {habit.times} before; "
        + (f"{case.names(beside)} beside it did as always" if beside else
           f"its program goes on after any error there, by the `except` at line {handler}")
    }  # fmt: skip


def wedged(case: Case) -> Ruling | None:
    """K12: every member is in the same operation and none of them moves. The fabric or a device is at fault; nobody is
    named.

    This needs a recording of the group's members. Otherwise a rank without a dump could be the one that has not come.
    """
    if case.sinks():
        return None
    names = Names.of(case.evidence, case.comparison)
    for group in sorted(case.groups, key=_longest, reverse=True):
        operation = _shared_operation(group)
        if operation is None:
            continue
        subjects = [case.subject(names.key(group, rank)) for rank in group.ranks]
        # A member that moves, is held or has ended is a better explanation.
        if all(subject.rests for subject in subjects):
            return _blames_fabric(case, group, operation, subjects)
    return None


def _shared_operation(group: GroupState) -> Collective | None:
    """The operation in which every member of a group has been for a while; None if one of them may be elsewhere."""
    members = group.group.members
    # Any member that is not accounted for could be the one that has not come.
    if group.absent or group.silent or len(members) < 2 or set(members) - set(group.ranks):
        return None
    pending = [state.pending for state in group.ranks.values() if state.pending is not None]
    are_at_one = len({operation.seq for operation in pending}) == 1 and not mismatch(group)
    if len(pending) < len(group.ranks) or not are_at_one:
        return None
    youngest_s = min((operation.age_s for operation in pending if operation.age_s is not None), default=ARRIVAL_S)
    return pending[0] if youngest_s >= ARRIVAL_S else None  # the last rank may have arrived just now


def _blames_fabric(case: Case, group: GroupState, operation: Collective, subjects: Sequence[Subject]) -> Ruling:
    """K12: what connects the members of a group, or one of their devices, is at fault."""
    members = len(group.group.members)
    hosts = sorted({subject.process.host for subject in subjects if subject.has_process})
    fabric = "fabric" if len(hosts) < 2 else network(hosts)
    blamed, evidence_lines = f"the {fabric} or a device", tuple[str, ...]()
    steps = (
        "look at links and devices: nvidia-smi, dmesg | grep -i xid, ibstat",
        "run the same operation alone on these hosts (nccl-tests), then halve the hosts",
    )
    # Unacknowledged TCP data says which hosts to look at.
    if (cut := severed(case)) is not None:
        blamed, evidence_lines, steps = cut.network, (cut.description,), (ping(*cut.ends), steps[1])
    return Ruling(
        "HUNG",
        f"{'both' if members == 2 else f'all {members}'} ranks are in {operation.op} #{operation.seq}: "
        f"{blamed}, not a rank",
        "K12",
        place=f"{operation.op} #{operation.seq} of {title(group)}",
        evidence=evidence_lines,
        next=steps,
    )


__all__ = ["Mismatch", "conditional", "diverged", "inverted", "wedged"]
