"""Rule about ranks that all wait in collectives, at different places of the program or in two threads of one rank, and
about ranks that all receive, so that none sends.

No recorder says who waits for whom. If every rank of the only world was seen at two looks, nothing moved, and nobody
else could come, the job hangs whatever the groups are. A rank is named only if the program's text proves that it left
out the operation in which all others wait. Otherwise the ruling says who stands where, and what is missing for a proof.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from harness.triage import gate_text, source, stacks
from harness.triage.evidence import Frame, Process, Thread
from harness.triage.graph import Subject
from harness.triage.graph.motion import BETWEEN_RANKS, BUSY_CORES, in_resting_backward
from harness.triage.graph.sockets import main_frames
from harness.triage.graph.worlds import same_world
from harness.triage.group_argument import GroupArgument, group_argument
from harness.triage.places import runs_users
from harness.triage.rules import standing
from harness.triage.rules.absence import trip
from harness.triage.rules.closed import NOBODY_LEFT, cycle
from harness.triage.rules.escapes import escaped
from harness.triage.rules.outsiders import foreign
from harness.triage.rules.pauses import FRESH_S
from harness.triage.rules.ruling import Case, Live, Ruling, Watching
from harness.triage.source import Loop
from reports.text import agreeing

LARGE_MAJORITY = 3  # times as many ranks: of two against one, either may have left a loop too soon
MAX_DOUBTS = 8  # that a verdict names, as other rules do with processes
_RESTS = ("join", "queue")  # other processes of the job that can come to no collective: parents, workers of a loader
ONE_GROUP_EACH = "give each thread a group of its own: dist.new_group()"
_NEXT = (
    Live("py-spy dump --pid PID   # the whole stack of one of them"),
    Watching("for the next run: harness watch -- COMMAND, which records the groups and who is in which operation"),
)


def apart(case: Case) -> Ruling | None:
    """K1, K2 or INSUFFICIENT: the ranks wait in collectives at different places or in two threads each, or all of them
    receive."""
    ranks = members(case)
    if not _all_stand_in_collectives(case, ranks):
        return None
    places = standing.places_of(ranks)
    in_two_threads = [subject for subject in ranks if collectives_beside(subject)]
    if len(places) < 2 and not in_two_threads and not all(map(_receives, ranks)):
        return None
    crossing = () if in_two_threads else _crossing(places)
    crossed = f"two groups in two orders: {'; '.join(crossing)}" if crossing else ""
    if open_questions := doubts(case, ranks):
        again = Live(f"{case.again()}   # again, in a minute: whether all still stand there")
        return Ruling(
            "INSUFFICIENT",
            _of_threads(case, in_two_threads, places) if in_two_threads else crossed or standing.headline(places),
            evidence=_lines(case, places),
            missing=tuple(open_questions[:MAX_DOUBTS]),
            place=_where(places),
            about=tuple(subject.key for subject in ranks),
            next=(ONE_GROUP_EACH, *_NEXT) if in_two_threads else (again, *_NEXT),
        )
    if in_two_threads:
        return _hung(case, places, _of_threads(case, in_two_threads, places), ONE_GROUP_EACH)
    # The text is read from the lines at which main threads stand.
    by_main = all(_main_thread_in_collective(subject.process) for subject in ranks)
    if by_main and (ruling := left_out(case, places)):
        return ruling
    if by_main and (ruling := escaped(case, places)):
        return ruling if ruling.culprits else replace(ruling, cycle=cycle(case, ranks))
    if by_main and (ruling := _in_a_longer_loop(case, places)):
        return ruling
    headline = crossed or f"{NOBODY_LEFT}: {standing.headline(places, 2)}"
    advice = _advice(ranks, _where(places), crossed=bool(crossing))
    return replace(_hung(case, places, headline, advice), cycle=cycle(case, ranks))


def _all_stand_in_collectives(case: Case, ranks: Sequence[Subject]) -> bool:
    """Whether all ranks of a live job stand in collectives, and nothing else says for whom they wait.

    A rank with a known target is judged by that wait. The parent of the ranks joins them, which says nothing.
    """
    is_recorded = case.evidence.stall_s or any(group.ranks for group in case.groups)
    if case.evidence.source != "live" or is_recorded or len(ranks) < 2:
        return False
    waits = list(map(stands_in_collective, ranks))
    # A backward pass computes, or waits for the gradients of the other ranks: beside ranks in collectives, the latter.
    apart_from_them = [subject for subject, is_in in zip(ranks, waits, strict=True) if not is_in]
    if not any(waits) or not all(_stands(each) and in_resting_backward(each.process) for each in apart_from_them):
        return False
    keys = {subject.key for subject in ranks}
    return not any(wait.waiter in keys for wait in case.graph.waits)


def _hung(case: Case, places: Sequence[standing.Place], headline: str, advice: str) -> Ruling:
    """K2: who stands where, and nobody is named."""
    return Ruling(
        "HUNG",
        headline,
        "K2",
        waiting={subject.key: place.words for place in places for subject in place.subjects},
        evidence=_lines(case, places),
        place=_where(places),
        next=(advice, *_NEXT),
    )


def members(case: Case) -> list[Subject]:
    """The ranks; where nothing numbers any, as in children of multiprocessing, all processes that do not only wait for
    the end or the items of others."""
    live = case.live()
    ranks = [subject for subject in live if subject.rank is not None]
    return ranks or [subject for subject in live if subject.doing.kind not in _RESTS]


def _advice(ranks: Sequence[Subject], where: str, *, crossed: bool) -> str:
    if crossed:
        return f"use the two groups in one order on every rank: {where}"
    if all(map(_receives, ranks)):
        return f"let one rank of each pair send before it receives, or use dist.batch_isend_irecv: {where}"
    return "compare on each rank what decides on these places: a group needs the same operations on all ranks"


def _crossing(places: Sequence[standing.Place]) -> tuple[str, ...]:
    """At two places by whose text each waits in a group of its own, and uses the other one's behind it: who waits in
    which group, where."""
    frames = [standing.users_frames(place)[:1] for place in places]
    if len(places) != 2 or not all(frames):
        return ()
    groups = [source.group_of(its[0], _function(place)) for its, place in zip(frames, places, strict=True)]
    behind = [source.groups_behind(its[0]) for its in frames]
    if not all(groups) or groups[0] == groups[1] or groups[0] not in behind[1] or groups[1] not in behind[0]:
        return ()
    return tuple(
        f"{place.who} in `{group}` at {place.words.partition(' ')[0]}"
        for place, group in zip(places, groups, strict=True)
    )


def _receives(subject: Subject) -> bool:
    return subject.doing.kind == "p2p" and subject.doing.op.startswith("recv")


def _lines(case: Case, places: Sequence[standing.Place]) -> tuple[str, ...]:
    return tuple(
        f"{standing.line(case, place, None)}{standing.gates_text(place)}" for place in places[: standing.MAX_LINES]
    )


def _where(places: Sequence[standing.Place]) -> str:
    return "; ".join(f"{place.who} at {place.words}" for place in places[: standing.MAX_PLACES])


def stands_in_collective(subject: Subject) -> bool:
    """Whether its main thread stands in one collective at both looks."""
    is_in_collective = subject.doing.kind in BETWEEN_RANKS and subject.before.kind in BETWEEN_RANKS
    return is_in_collective and _stands(subject)


def _stands(subject: Subject) -> bool:
    """Whether it rests at one place at every look, and its recorder names no operation."""
    looks = subject.process.samples
    rests = subject.rests and subject.pending is None
    return rests and len(looks) > 1 and looks[0].main_frames == looks[-1].main_frames


def collectives_beside(subject: Subject) -> list[Thread]:
    """Threads beside the main one that stand in a collective of their own.

    A main thread that waits for one of them is in no collective, and is seen in that one's.
    """
    aside = [thread for thread in _side_threads(subject.process) if stacks.classify(thread).kind in BETWEEN_RANKS]
    return aside if _main_thread_in_collective(subject.process) else aside[1:]


def _main_thread_in_collective(process: Process) -> bool:
    threads = process.threads
    main = main_frames(threads)
    return any(thread.frames == main and stacks.classify(thread).kind in BETWEEN_RANKS for thread in threads)


def _side_threads(process: Process) -> list[Thread]:
    """Threads of the user's code beside the main one, at the last look."""
    threads = process.threads
    main = main_frames(threads)
    return [thread for thread in threads if thread.frames != main and runs_users(thread)]


def _of_threads(case: Case, ranks: Sequence[Subject], places: Sequence[standing.Place]) -> str:
    words = next(place.words for place in places if ranks[0] in place.subjects)
    several = "two threads of " + case.names(subject.key for subject in ranks)
    return f"{several} wait in collectives at once: {words}"


def doubts(case: Case, ranks: Sequence[Subject]) -> list[str]:
    """What keeps the places from proving that the job hangs, in words: who may still come, or what may still move."""
    lines = []
    if not _is_whole_world(ranks):
        numbered = all(subject.rank is not None for subject in ranks)
        unnumbered = "" if numbered else ", which nothing numbers here"
        lines.append(f"all ranks of one world{unnumbered}: others may still come")
    if case.evidence.gpus:
        lines.append("what the GPUs do: a kernel may still run on one of them")
    quiet = [look.net_quiet_s for subject in ranks for look in subject.process.samples]
    if any(seconds is None or seconds < FRESH_S for seconds in quiet):
        lines.append(f"for how long the ranks have stood still: at least {FRESH_S:.0f} s without data are needed")
    return [*lines, *(line for subject in ranks for line in _beside(case, subject)), *_may_come(case, ranks)]


def _is_whole_world(ranks: Sequence[Subject]) -> bool:
    """Whether these are all ranks of one world."""
    first = ranks[0].process
    are_together = all(same_world(first, subject.process) for subject in ranks)
    is_one_size = {subject.process.world_size for subject in ranks} == {first.world_size}
    size = first.world_size
    return are_together and is_one_size and size is not None and {subject.rank for subject in ranks} == set(range(size))


def _beside(case: Case, subject: Subject) -> Iterator[str]:
    """Yield what may still happen in the process of a rank, or come to it, beside its collective."""
    if peers := foreign(case, subject.process):
        yield f"what {subject.label} is connected to outside the job ({', '.join(peers[:2])})"
    if _computes(subject.process):
        yield f"what {subject.label} computes beside the collective"
    for thread in _side_threads(subject.process):
        if stacks.classify(thread).kind not in BETWEEN_RANKS:
            yield f"what thread {thread.name} of {subject.label} will do, {stacks.user_frame(thread.frames)}"


def _may_come(case: Case, ranks: Sequence[Subject]) -> Iterator[str]:
    """Yield the other processes that may come to a collective."""
    come_to_none = {subject.key for subject in ranks} | _ancestors(case, ranks)
    for subject in case.live():
        if subject.key not in come_to_none and (subject.progress or subject.doing.kind not in _RESTS):
            yield f"whether {subject.label} will come: {subject.state()}"


def _ancestors(case: Case, ranks: Sequence[Subject]) -> set[str]:
    """The launcher of the ranks and what started it, such as a shell or `timeout`: they wait for an end, and come to
    no collective."""
    parents = {(each.host, each.pid): each for each in case.evidence.processes}
    above: set[str] = set()
    for subject in ranks:
        process = parents.get((subject.process.host, subject.process.ppid))
        while process is not None and process.key not in above:
            above.add(process.key)
            process = parents.get((process.host, process.ppid))
    return above


def _computes(process: Process) -> bool:
    """Whether any of its threads used a processor between the looks, such as a native thread of a backward pass."""
    gap = process.between_looks_s
    return gap <= 0 or (process.last_look.cpu_s - process.first_look.cpu_s) / gap >= BUSY_CORES


def left_out(case: Case, places: Sequence[standing.Place]) -> Ruling | None:
    """K1 or K10: by the program's text a minority left out the collective in which all others wait, and is in another
    one of the same group."""
    if len(places) != 2 or 2 * len(places[1].subjects) >= sum(len(place.subjects) for place in places):
        return None
    (awaited, function), (elsewhere, later) = ((standing.users_frames(place), _function(place)) for place in places)
    if function == later or not (awaited and elsewhere):  # the stack of a rank may not be known
        return None
    groups = group_argument(awaited, function), group_argument(elsewhere, later)
    if groups[0] is None or groups[0] != groups[1] or (departure := _departure(awaited, elsewhere)) is None:
        return None
    if departure.hang == "K10" and groups[0] != GroupArgument():
        return None  # one name may be a group of its own for the ranks of each branch
    most, odd = places
    waits = agreeing(len(most.subjects), "waits", "wait")
    why = {
        subject.key: f"{departure.words} {most.words}, where {most.who} {waits}, and is in {odd.words}"
        f"{standing.gates_text(most, most.words.partition(' ')[0] + ' is ')}"
        for subject in odd.subjects
    }
    return Ruling(
        "HUNG",
        f"{odd.who} left out {most.words}, where {most.who} {waits}: now at {odd.words}",
        departure.hang,
        why,
        place=_where(places),
        evidence=_lines(case, places),
        next=(
            departure.advice,
            Live("py-spy dump --pid PID   # the whole stack of the rank that left it out"),
        ),
    )


def _in_a_longer_loop(case: Case, places: Sequence[standing.Place]) -> Ruling | None:
    """K1: a few ranks are still in a loop that three times as many have left, by the text, in one group."""
    if len(places) != 2 or len(places[0].subjects) < LARGE_MAJORITY * len(places[1].subjects):
        return None
    most, odd = places
    left, inside = standing.users_frames(most), standing.users_frames(odd)
    line = source.behind_loop(left[0], inside[0]) if left and inside else 0
    groups = group_argument(left, _function(most)), group_argument(inside, _function(odd))
    if not line or groups[0] is None or groups[0] != groups[1]:
        return None
    how = f"{agreeing(len(odd.subjects), 'is', 'are')} still in the loop at line {line}"
    why = {subject.key: f"{how}, which {most.who} have left: now at {most.words}" for subject in odd.subjects}
    waiting = {subject.key: most.words for subject in most.subjects}
    return replace(trip(why, case, _where(places), how=how), waiting=waiting, evidence=_lines(case, places))


def _function(place: standing.Place) -> str:
    """The collective that the program calls at a place."""
    return place.words.rpartition(" ")[2]


@dataclass(frozen=True)
class _Departure:
    """How a rank has left out an operation, in words, the kind of hang, and what to do."""

    words: str
    hang: str = "K1"
    advice: str = "let one rank decide and broadcast its decision, so that all ranks run the same collectives"


def _departure(awaited: Sequence[Frame], elsewhere: Sequence[Frame]) -> _Departure | None:
    """How a rank in `elsewhere` has left out the operation at `awaited`; None if the text does not prove that.

    The frames are the user's, innermost first.

    1. Two branches of one statement exclude each other: whoever is in one has left out the other's operation, on both
       sides alike. Only a condition on the rank, or an error that one side caught, says who is odd.
    2. Outside any loop, a later line proves it. In a loop the rank may be a round behind. Then it is proven only if a
       gate decides on the awaited line and none on the other: nobody can have left that one out.
    3. Nothing is proven of a rank that did not meet the error after which the others wait in an `except`.
    """
    outer = list(zip(reversed(awaited), reversed(elsewhere), strict=False))
    shared = next((at for at, (mine, its) in enumerate(outer) if mine != its), len(outer))
    if shared == len(outer):
        return None
    mine, its = outer[shared]
    if (mine.file, mine.function) != (its.file, its.function):
        return None
    at_place, inner = _gates((mine,)), _gates(awaited[: len(awaited) - shared - 1])
    beside, beyond = _gates((its,)), _gates(elsewhere[: len(elsewhere) - shared - 1])
    loops = [source.loop_around(frame) for frame, _ in outer[:shared]]
    if at_place is None or inner is None or beside is None or beyond is None or Loop.UNKNOWN in loops:
        return None
    if any(gate.in_handler for gate in (at_place - beside) | inner):
        return None
    if excluding := [gate for gate in beside if any(gate.excludes(other) for other in at_place)]:
        return _by_branch(max(excluding, key=lambda gate: gate.line))
    rounds = any(loop is not Loop.NONE for loop in loops) or any(" loop" in gate.words for gate in at_place & beside)
    if not rounds:
        return _Departure("is past") if its.line > mine.line else None
    proven = (at_place - beside or inner) and not (beside - at_place or beyond)
    return _Departure("has left out") if proven else None


def _by_branch(gate: gate_text.Gate) -> _Departure | None:
    """How a rank in a branch of a statement has left out what the other branch runs; None if the statement does not
    say who is odd."""
    if gate.in_handler:
        return _Departure(
            f"caught an error by the `except` at line {gate.line}, has left out",
            advice="let a rank with an error raise it, or tell the others before the next collective: line "
            f"{gate.line}",
        )
    if gate.asks_for_rank:
        return _Departure(
            f"is {gate.words} (line {gate.line}), has left out",
            "K10",
            "let both branches run the same collectives, or take them out of the branches",
        )
    return None


def _gates(frames: Sequence[Frame]) -> frozenset[gate_text.Gate] | None:
    """The gates of all these frames; None if the text of one cannot be read."""
    gates = [gate_text.gates(frame) for frame in frames]
    return None if None in gates else frozenset().union(*(each for each in gates if each))
