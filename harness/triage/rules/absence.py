"""Rules about a rank that has not come to an operation and does not advance, when nothing else explains it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import PurePath

from harness.triage import source, wchan
from harness.triage.evidence import PASTED, Thread
from harness.triage.flight.model import GroupState, RankState
from harness.triage.graph import Subject
from harness.triage.graph.edges import Names
from harness.triage.graph.motion import BETWEEN_RANKS, handlers
from harness.triage.rules import standing, threads
from harness.triage.rules.alive import actor, failed, user_frames
from harness.triage.rules.outsiders import awaits_tasks, beyond, elsewhere, in_client
from harness.triage.rules.pauses import FRESH_S
from harness.triage.rules.processes import local_error
from harness.triage.rules.ruling import NAME_WHO_IS_ASKED, YOUNG_S, Case, Live, Native, Ruling, Watching, brief
from harness.triage.rules.withheld import Withheld, unanswered, withheld
from harness.triage.stacks import AT_EXIT, EVENT_LOOP, posture, user_frame
from reports.headline import fits
from reports.sections.triage import ranks
from reports.text import agreeing

MAX_DESCRIBED = 8  # processes whose state a verdict gives
MAX_BELOW = 2  # places of children in a headline that names their parent too
_STAND = Live("py-spy dump --pid PID   # where it stands")
_COUNTS = (
    "count the batches and microbatches of one epoch on each rank",
    "join the ranks' loops: torch.distributed.algorithms.join.Join, or drop_last",
)
_LATE_DEVICE = ("nvidia-smi; dmesg | grep -i xid", Native.dump("where the rank stands"))
_WITHOUT_AN_ERROR = (_STAND, "read its code there, and the end of its log: what it waits for")


def left_loop(case: Case) -> Ruling | None:
    """K1: some ranks have left the loop in which the others still wait, or some go round once more than the others.

    K4 where a rank's program is over, and no recorder says whether by its last line or by an error.
    """
    ends = [end for end in _absent(case) if _peers_wait_for(case, end)]
    together = ("collective", "p2p", "store")  # a rank that calls one of these itself is in no collective
    waiters = [waiter for waiter in _waiters(case, ends) if waiter.pending is not None or waiter.doing.kind in together]
    if not ends or not waiters or _young(case):
        return None
    # Two ways to tell who is odd: a minority waits alone, or the source text shows a loop that was left.
    if _outnumbered(case, ends, waiters):
        where = case.waited_in(end.key for end in ends)
        why = f"runs {where}, to which {len(ends)} others do not come"
        return trip({waiter.key: why for waiter in waiters}, case, where, how="runs one alone")
    past = {end.key: line for end in ends if (line := _exited_loop(end, waiters))}
    past |= {end.key: 0 for end in ends if end.key not in past and end.doing.kind in ("finished", "ray_idle")}
    if not past:
        return None
    if unrecorded := [key for key, line in past.items() if not line and _is_unrecorded_exit(case.subject(key))]:
        return _exited(case, unrecorded)
    how = {
        key: f"has left the loop at line {line}" if line else "is through with its work" for key, line in past.items()
    }
    why_past = {key: f"{words}: {case.subject(key).state()}" for key, words in how.items()}
    return trip(why_past, case, case.waited_in(past), how=next(iter(how.values())))


def _is_unrecorded_exit(subject: Subject) -> bool:
    """Whether a process stands at the end of its interpreter, where a program that raised stands as well, without a
    record of its errors."""
    return (subject.doing.kind, subject.doing.op) == AT_EXIT and subject.process.beat is None


def _exited(case: Case, keys: Sequence[str]) -> Ruling:
    names, where = case.names(keys), case.waited_in(keys)
    return Ruling(
        "HUNG",
        f"the program of {names} is over, and a thread keeps it alive; others wait in {where}",
        "K4",
        dict.fromkeys(keys, "its program is over, by its last line or by an error; a thread keeps it alive"),
        place=where,
        missing=(f"whether the program of {names} raised: its log tells, or a start under harness watch",),
        next=(
            f"read the end of the log of {names}: an error there is the cause; without one it left the loop early",
            *_COUNTS,
        ),
    )


def _outnumbered(case: Case, ends: list[Subject], waiters: list[Subject]) -> bool:
    """Whether a minority waits in an operation to which the majority does not come, and the majority rests without
    polling."""
    # Engines in the group of a weight sync are no peers of its sender: those that left it are to blame, however many
    # they are.
    joined = {group.group.name for group in case.groups if group.joined}
    peers = not all(waiter.pending is not None and waiter.pending.group in joined for waiter in waiters)
    resting = all(not actor(case, end) and _passive(end) for end in ends)
    return peers and len(ends) > len(waiters) and resting


def trip(why: dict[str, str], case: Case, where: str, *, how: str) -> Ruling:
    """Return the K1 ruling: ranks went round a loop more or less often than the others.

    `why`: node -> reason. `where`: the operation in which they are waited for. `how`: the first reason, in few words.
    """
    return Ruling(
        "HUNG",
        f"a different number of collectives: {case.names(why)} {how}",
        "K1",
        why,
        place=where,
        next=_COUNTS,
    )


def outside(case: Case) -> Ruling | None:
    """K4: the process that the others wait for is alive, outside any collective, and does nothing that would end the
    wait."""
    ends = _absent(case)
    if not ends or not _waiters(case, ends) or _young(case):
        return None
    behind = {end.key: its for end in ends if (its := _withheld(case, end)) is not None}
    why = {end.key: _why(case, end, behind.get(end.key)) for end in ends}
    where = case.waited_in(why)
    handled = {end.key: user_frame(handler.frames) for end in ends if (handler := _handler(end)) is not None}
    return Ruling(
        "HUNG",
        _outside_headline(case, ends, behind, where),
        "K4",
        why,
        place=where,
        frames={**{key: its.place for key, its in behind.items()}, **handled},
        next=_after_absence(ends, behind),
    )


def _withheld(case: Case, subject: Subject) -> Withheld | None:
    """What keeps a rank, or a server's answer, back inside its own process, where no error of its own explains it."""
    if local_error(subject.process) or failed(subject.process):
        return None
    if _peers_wait_for(case, subject):
        return withheld(case, subject)
    handler = _handler(subject)
    return unanswered(subject.process, handler) if handler is not None else None


def _outside_headline(case: Case, ends: list[Subject], behind: dict[str, Withheld], where: str) -> str:
    names, words = case.names(end.key for end in ends), {its.words for its in behind.values()}
    if len(ends) == 1 and words:
        sentence = f"{names} {words.pop()}"
        longer = f"{sentence}; others wait in {where}"
        return longer if fits("HUNG", longer) else sentence
    return f"{names} {_briefly(case, ends)}; others wait in {where}"


def _after_absence(ends: Sequence[Subject], behind: dict[str, Withheld]) -> tuple[str, ...]:
    """What to try about ranks that have not come."""
    if any(failed(end.process) for end in ends):
        return _after_an_error(ends)
    fixes = dict.fromkeys(step for its in behind.values() for step in its.fix)
    return tuple(fixes) or _WITHOUT_AN_ERROR


def _after_an_error(ends: Sequence[Subject]) -> tuple[str, ...]:
    place = next(filter(None, map(_handler_place, ends)), "")
    by = f" by the `except` at {place}" if place else ""
    return (
        f"read the end of its log for an error that was caught{by}",
        _STAND,
        "let a failed rank end: torchrun and Ray then end the others",
    )


def _handler_place(subject: Subject) -> str:
    """The innermost `except` in which a process stands, as "train.py:8"; empty without one."""
    lines = ((frame, source.handler_line(frame)) for frame in user_frames(subject.process))
    return next((f"{PurePath(frame.file).name}:{line}" for frame, line in lines if line), "")


def _handler(subject: Subject) -> Thread | None:
    """The thread of a server that handles a request and stands; None if its main thread serves nobody."""
    if not subject.doing.within("http_server"):
        return None
    return next((thread for thread in handlers(subject.process) if not thread.main), None)


def device(case: Case) -> Ruling | None:
    """K9: the host code of a rank is as far as that of its peers, and its device is not.

    Counters of a log alone do not show that: of an operation that a rank ended no line says which one it was, so that
    equal numbers may be of different ones (`pasted.timed_out`).
    """
    if case.evidence.timed_out_s:
        return None
    ends = [sink for sink in case.sinks() if sink.pending is not None and not sink.progress]
    why = {end.key: f"{end.state()}: {behind}" for end in ends if (behind := _device_behind(case, end))}
    # Without a pending operation, a rank that waits for its device hangs there too, if its recorder would show a
    # collective.
    lost = [sink for sink in case.sinks() if sink.pending is None and sink.doing.kind == "device"]
    why |= {sink.key: f"{sink.state()}: it does not end what it was given, and none of that is a collective"
            for sink in lost if not sink.progress and _recorded(case, sink) and not _unrecorded(sink)}  # fmt: skip
    if not why or _young(case):
        return None
    first = case.subject(next(iter(why)))
    pending = first.pending
    called = pending is not None and pending.called
    stands = "its device does not end what it was given"
    if pending is not None:
        call = f"its host thread is inside the call of {pending.op} #{pending.seq}"
        stands = call if called else "its device has not got to what it was given"
    sentence = f"{case.names(why)}: {stands}"
    if pending is not None and len(why) == 1 and (peers := _through(case, first)):
        sentence = (
            f"{standing.ranks_text(peers)} completed #{pending.seq}, the {pending.op} in which {first.label} waits"
        )
    return Ruling(
        "HUNG",
        sentence,
        "K9",
        why,
        place=case.waited_in(why) or first.state(),
        next=_LATE_DEVICE,
    )


def _unrecorded(subject: Subject) -> bool:
    """Whether this is a rank of an engine with several ranks. Its collectives run in CUDA graphs and communicators
    that no recorder sees, so its device may wait for that of a peer."""
    return bool(subject.process.engine) and (subject.process.world_size or 2) > 1


def _device_behind(case: Case, subject: Subject) -> str:
    """Say in words how far peers are ahead in the operation that a rank is in; empty if no peer is.

    If nobody recorded the members of the group, the missing rank may not be in the evidence.
    """
    assert subject.pending is not None
    seq = subject.pending.seq
    for group, peers in _peers_in_group(case, subject):
        inside = [state.pending for state in peers if state.pending is not None and state.pending.seq == seq]
        if not subject.pending.started and any(pending.started for pending in inside):
            if subject.pending.called:
                return "its host thread is inside the call, which has not returned"
            return "its device has not got to it: something earlier on its stream does not end"
        if not group.absent and any(state.completed >= seq for state in peers):
            return "its peers are through with it"
    return ""


def _through(case: Case, subject: Subject) -> list[int]:
    """The ranks that completed the operation in which a rank waits, which none has begun and not ended."""
    pending = subject.pending
    peers = [state for _, states in _peers_in_group(case, subject) for state in states]
    if pending is None or any(state.pending is not None and state.pending.seq == pending.seq for state in peers):
        return []
    return sorted(state.rank for state in peers if state.completed >= pending.seq)


def _peers_in_group(case: Case, subject: Subject) -> Iterator[tuple[GroupState, list[RankState]]]:
    """The groups in which a rank waits, each with the states of the others in it."""
    names = Names.of(case.evidence, case.comparison)
    for group in case.groups:
        keys = {rank: names.key(group, rank) for rank in group.ranks}
        if subject.pending is not None and group.group.name == subject.pending.group and subject.key in keys.values():
            yield group, [state for rank, state in group.ranks.items() if keys[rank] != subject.key]


def unseen(case: Case) -> Ruling | None:
    """INSUFFICIENT: waiting ends at a process of which nothing was seen. Says what is missing."""
    stuck = [waiter for waiter in case.graph.stuck() if not waiter.progress]
    if not stuck:
        return None
    ends = case.sinks()
    blind = [end for end in ends if _not_known(end)]
    if blind:
        if ruling := _for_programs(case, blind):
            return ruling
        return _not_looked_at(case, blind, stuck)
    if _young(case) and ends:
        return Ruling(
            "INSUFFICIENT",
            f"the wait is younger than {YOUNG_S:.0f} s: look again",
            next=(Live(f"{case.again()}   # in a minute"),),
        )
    # Prefer waiters that no layer gives a target: they are where the chain breaks.
    with_target = case.graph.waiting
    waiters = [waiter for waiter in stuck if waiter.key not in with_target] or stuck
    if ruling := beyond(case, ends):
        return ruling
    if calling := [waiter for waiter in waiters if waiter.doing.kind == "http_client" and waiter.pending is None]:
        return elsewhere(case, calling)
    return _for_nobody(case, waiters)


def _not_known(subject: Subject) -> bool:
    """Whether there is neither a stack nor a recorder of it."""
    return not subject.observed or (subject.doing.kind == "unknown" and subject.pending is None)


def _for_programs(case: Case, blind: list[Subject]) -> Ruling | None:
    """INSUFFICIENT: processes wait for the end of programs that they started, which are not in Python."""
    by_key = {subject.key: subject for subject in blind if subject.rank is None and subject.has_process}
    parents = {wait.target: case.subject(wait.waiter) for wait in case.graph.waits
               if wait.layer == "process" and wait.target in by_key}  # fmt: skip
    if len(parents) < len(blind):
        return None
    lines = []
    for key, parent in parents.items():
        process = by_key[key].process
        awaited = wchan.words(process.last_look.wchan)
        kernel = f", which waits for {awaited}" if awaited else ""
        lines.append(
            f"{parent.label} at {parent.frame or 'its call'} waits for the end of: {brief(process.command)}{kernel}"
        )
    first, parent = next(iter(parents.items()))
    return Ruling(
        "INSUFFICIENT",
        f"{parent.label} waits for the end of {by_key[first].label}, a program without a Python stack",
        evidence=tuple(lines[:MAX_DESCRIBED]),
        missing=tuple(f"what {by_key[key].label} does" for key in parents),
        place=parent.frame,
        next=(
            Live(f"{case.again()}   # in a minute: whether it has ended"),
            "give the call a timeout, and say in its error what did not end",
        ),
    )


def _not_looked_at(case: Case, blind: list[Subject], stuck: list[Subject]) -> Ruling:
    numbers = [subject.rank for subject in blind if subject.rank is not None]
    if numbers:
        what = "no recorder data from rank"
        of_whom = f"{agreeing(len(numbers), what, f'{what}s')} {ranks(numbers)}"
    else:
        what = "neither stack nor recorder of"
        of_whom = f"{what} {case.names(subject.key for subject in blind)}"
    processes_seen = any(process.samples for process in case.evidence.processes)
    again = "once more, on every host, and then all directories together" if processes_seen else "with its file in it"
    return Ruling(
        "INSUFFICIENT",
        f"{of_whom}, for which {f'{stuck[0].label} waits' if len(stuck) == 1 else 'the others wait'}",
        missing=tuple(f"{what} {subject.rank if subject.rank is not None else subject.label}" for subject in blind),
        place=case.waited_in(subject.key for subject in blind),
        next=(
            f"{case.again()}   # {again}",
            Watching("for the next run: harness watch -- COMMAND, which switches the recorders on"),
        ),
    )


def _for_nobody(case: Case, waiters: list[Subject]) -> Ruling:
    """INSUFFICIENT: processes wait, and nothing says for whom. Their siblings that stand elsewhere are told, or where
    the children stand for whose end they wait."""
    siblings = _siblings_elsewhere(case, waiters)
    children = [] if siblings else _joined(case, waiters)
    awaiting = children or waiters
    places = standing.places_of(awaiting)
    looped = [] if siblings else standing.looped_groups(places)
    in_groups = any(len(place.subjects) > 1 and place.subjects[0].doing.kind in BETWEEN_RANKS for place in places)
    reason = _in_a_loop(*looped[0]) if looped else _waiting(case, waiters, siblings, children)
    return Ruling(
        "INSUFFICIENT",
        reason,
        evidence=tuple(
            f"{subject.label}: {subject.state()}" for subject in (*siblings, *children, *waiters)[:MAX_DESCRIBED]
        ),
        missing=(
            *([standing.GROUPS_WANTED] if in_groups else ()),
            *(f"for whom {waiter.label} waits" for waiter in awaiting[:MAX_DESCRIBED]),
        ),
        place=(siblings or awaiting)[0].state(),
        about=tuple(subject.key for subject in siblings or awaiting),
        next=(
            Live("py-spy dump --pid PID   # why it is not where the others wait" if siblings else ""),
            Live("py-spy dump --pid PID   # for whom this child waits" if children else ""),
            *(_in_one_order(place, text) for place, text in looped),
            case.attach(),
            NAME_WHO_IS_ASKED
            if case.evidence.is_watched
            else "for the next run: harness watch -- COMMAND, which records groups and open spans",
            Native.dump("what it waits for in C", waiters[0].process.pid if siblings else "PID"),
        ),
    )


def _in_a_loop(place: standing.Place, text: str) -> str:
    return f"{place.who} wait at {place.words} in a loop over groups; no stack says in which `{text}`"


def _in_one_order(place: standing.Place, text: str) -> str:
    at = place.words.partition(" ")[0]
    return f"compare `{text}` at {at} on each rank: go through the groups in one order on all of them"


def _waiting(case: Case, waiters: list[Subject], siblings: list[Subject], children: list[Subject]) -> str:
    """Who waits, in one line: beside which siblings, or for which children."""
    if siblings:
        return standing.headline(standing.places_of([*waiters, *siblings]))
    if not children:
        return threads.for_whom(case, waiters)
    wait = agreeing(len(waiters), "waits for its", "wait for their")
    below = standing.headline(standing.places_of(children), MAX_BELOW)
    return f"{case.names(waiter.key for waiter in waiters)} {wait} children, which wait: {below}"


def _joined(case: Case, waiters: list[Subject]) -> list[Subject]:
    """The processes for whose end the waiters wait: they are alive and started by one, and wait themselves."""
    parents = {(waiter.process.host, waiter.process.pid) for waiter in waiters
               if waiter.doing.kind == "join"}  # fmt: skip
    return _children(case, parents, waiters)


def _siblings_elsewhere(case: Case, waiters: list[Subject]) -> list[Subject]:
    """Processes with the same parent as those that wait in a collective, which stand elsewhere.

    They may be the other ranks of a job whose processes bear no rank. Nothing says so for certain.
    """
    if any(waiter.doing.kind not in BETWEEN_RANKS or waiter.rank is not None for waiter in waiters):
        return []
    parents = {(waiter.process.host, waiter.process.ppid) for waiter in waiters}
    return _children(case, parents, waiters)


def _children(case: Case, parents: set[tuple[str, int]], waiters: list[Subject]) -> list[Subject]:
    """The live children of these parents (host, pid) of which a place is known, without the waiters themselves."""
    keys = {waiter.key for waiter in waiters}
    return [
        subject
        for subject in case.live()
        if subject.key not in keys and (subject.process.host, subject.process.ppid) in parents and subject.doing.frame
    ]


def _absent(case: Case) -> list[Subject]:
    """Ends of waiting that may be blamed for not coming.

    Each was seen twice, does not advance, and does not itself wait for somebody unknown. Processes whose answer may
    still be on its way are left out: those asked just now, those in an event loop or a client call, and Ray workers
    that still fetch arguments.
    """
    return [
        sink
        for sink in case.sinks()
        if sink.observed
        and sink.key not in case.excused
        and not sink.progress
        and not sink.stuck
        and not sink.launcher
        and (sink.ended or not _once(sink) or _counted(case, sink))  # one look shows no standstill
        and not _asked_just_now(case, sink)
        and not awaits_tasks(sink)
        and not in_client(case, sink)
        and not _fetches(case, sink)
        and (sink.doing.kind != "unknown" or not sink.has_process or _misses(case, sink))
        and (sink.doing.kind == "unknown") is (sink.before.kind == "unknown")  # else one look at its stack failed
    ]


def _once(subject: Subject) -> bool:
    """Whether it was looked at once."""
    return len(subject.process.samples) == 1


def _counted(case: Case, subject: Subject) -> bool:
    """Whether lines of a log gave the counters of its recorder: they were written after a collective had timed out."""
    return case.evidence.source == PASTED and _recorded(case, subject)


def _fetches(case: Case, subject: Subject) -> bool:
    """Whether Ray is still fetching the arguments of a task for this process."""
    if not subject.doing.within("ray_idle"):
        return False
    mine = [task for task in case.evidence.ray_tasks if task.pid == subject.process.pid]
    return any("ARGS" in task.state and task.host in ("", subject.process.host) for task in mine)


def _recorded(case: Case, subject: Subject) -> bool:
    return any(
        state.key == subject.key or (state.rank == subject.rank and not group.joined)
        for group in case.groups
        for state in group.ranks.values()
    )


def _misses(case: Case, subject: Subject) -> bool:
    """Whether the recorders alone show that a process of which no stack was had does not come to a collective. What it
    does meanwhile is not known: none through whose connections data went a moment ago, nor one that owes an answer."""
    looks = subject.process.samples
    quiet_s = min((look.net_quiet_s for look in looks if look.net_quiet_s is not None), default=FRESH_S)
    return _peers_wait_for(case, subject) and _recorded(case, subject) and quiet_s >= FRESH_S


def _peers_wait_for(case: Case, subject: Subject) -> bool:
    """Whether peers wait for it in a collective, or in the making of a group."""
    return any(wait.layer in ("collective", "store") for wait in case.graph.waits_for(subject.key))


def _waiters(case: Case, ends: list[Subject]) -> list[Subject]:
    keys = {end.key for end in ends}
    return [case.subject(key) for key in dict.fromkeys(wait.waiter for wait in case.graph.waits if wait.target in keys)]


def _passive(subject: Subject) -> bool:
    """Whether nothing is known to be wrong with it: it only takes no part."""
    return (
        not subject.ended
        and not subject.blocked
        and not local_error(subject.process)
        and subject.doing.kind != "debugger"
    )


def _young(case: Case) -> bool:
    """Whether this is a live job whose oldest wait is younger than YOUNG_S: it may just have been on its way."""
    if case.evidence.source != "live":
        return False
    ages = [wait.since_s for wait in case.graph.waits if wait.since_s is not None]
    ages += [waiter.process.beat.progress_age_s for waiter in case.graph.stuck() if waiter.process.beat]
    return bool(ages) and max([*ages, case.evidence.stall_s]) < YOUNG_S


def _asked_just_now(case: Case, subject: Subject) -> bool:
    """Whether the process was seen at one moment only, and every call that waits for it is young or goes to an event
    loop."""
    if case.evidence.source != "live" or case.evidence.stall_s:
        return False
    waits = case.graph.waits_for(subject.key)
    if _in_event_loop(subject) and all(wait.layer == "ray" for wait in waits):
        return True  # no stack shows a coroutine that awaits; only a stall shows that it does nothing
    return all(wait.layer == "ray" and wait.since_s is not None and wait.since_s < YOUNG_S for wait in waits)


def _in_event_loop(subject: Subject) -> bool:
    """Whether this is an asyncio actor of Ray: its main thread is idle, and its event loop waits in a thread of its
    own."""
    loops = [thread for thread in subject.process.threads if thread.name.startswith(EVENT_LOOP)]
    return subject.doing.within("ray_idle") and bool(loops)


def _exited_loop(subject: Subject, waiters: list[Subject]) -> int:
    """The line of a loop that `subject` has left for good and that a waiter is still in, by the source text; 0 if there
    is none. A loop of epochs around it brings `subject` back once it is through with what it does between them."""
    mine = user_frames(subject.process)
    if any(source.handler_line(frame) for frame in mine):
        return 0
    for waiter_frame in dict.fromkeys(frame for waiter in waiters for frame in user_frames(waiter.process)):
        for at, frame in enumerate(mine):
            line = source.behind_loop(frame, waiter_frame)
            if line and not source.comes_back(mine[at:], line):
                return line
    return 0


def _why(case: Case, subject: Subject, behind: Withheld | None) -> str:
    notes = [*_lock_waits(case, subject), *_lost_children(case, subject)]
    itself = _of_itself(case, subject)
    if behind is not None:
        itself = f"is outside any collective: {behind.words}" if _peers_wait_for(case, subject) else behind.words
    return itself + "".join(f"; {note}" for note in notes)


def _lock_waits(case: Case, subject: Subject) -> list[str]:
    """Of the lock of a file that it waits for in the kernel, the file and who holds it."""
    process = subject.process
    locks = [lock for lock in case.evidence.locks
             if lock.host == process.host and process.pid in lock.waiters]  # fmt: skip
    return [f"it waits for the lock of {lock.path}, which {lock.pid} ({brief(lock.command)}) holds" for lock in locks]


def _lost_children(case: Case, subject: Subject) -> list[str]:
    """Its children that failed: it may be waiting for the end of one without knowing that it has failed."""
    children = [case.subject(each.key) for each in case.evidence.processes if each.is_child_of(subject.process)]
    return [f"its child {each.process.pid} {each.state()}" for each in children if each.process.exit_code]


def _briefly(case: Case, ends: list[Subject]) -> str:
    """What all of `ends` do, in few words, taken from the first."""
    first, count = ends[0], len(ends)
    if error := local_error(first.process):
        return f"failed and stayed: {brief(error)}"
    if _sleeps(first) and not any(failed(end.process) for end in ends):
        place = first.frame.partition(" in ")[0]
        return f"{agreeing(count, 'sleeps', 'sleep')} at {place}"
    if not _peers_wait_for(case, first):
        return agreeing(count, "does not answer", "do not answer")
    if first.doing.kind == "unknown":  # only its recorder is known
        return f"{agreeing(count, 'has', 'have')} enqueued nothing more"
    return f"{agreeing(count, 'is', 'are')} outside any collective"


def _sleeps(subject: Subject) -> bool:
    """It is in a sleep of its own code at both looks."""
    return subject.doing.kind == subject.before.kind == "sleep" and bool(subject.frame)


def _state(subject: Subject) -> str:
    """What it does, and since when its heartbeat saw no change."""
    beat = subject.process.beat
    since = f", unchanged for {beat.progress_age_s:.0f} s" if beat is not None and not beat.ended else ""
    return f"{subject.state()}{since}"


def _of_itself(case: Case, subject: Subject) -> str:
    if error := local_error(subject.process):
        return f"failed and stayed: {error}"
    if place := _handler_place(subject):
        return f"has swallowed an error by the `except` at {place}, and is outside any collective: {_state(subject)}"
    if not _peers_wait_for(case, subject):
        handler = _handler(subject)
        if handler is not None:
            return (
                f"does not answer: {threads.name(handler)} handles a request and {posture(handler)} at "
                f"{user_frame(handler.frames)}"
            )
        return f"does not answer: {_state(subject)}"
    if subject.doing.kind == "unknown":
        return _enqueued_last(case, subject)
    return f"is outside any collective: {_state(subject)}"


def _enqueued_last(case: Case, subject: Subject) -> str:
    """What its recorder has last, and where that was enqueued. It is done, so this is not where it stands now."""
    awaited_groups = {wait.group for wait in case.graph.waits if wait.target == subject.key}
    operations = [
        state.last
        for group in sorted(case.groups, key=lambda group: group.group.name not in awaited_groups)
        for state in group.ranks.values()
        if state.last is not None and (state.key == subject.key or (state.rank == subject.rank and not group.joined))
    ]
    if not operations:
        counted = [state.enqueued for group in case.groups for state in group.ranks.values()
                   if group.group.name in awaited_groups and state.rank == subject.rank]  # fmt: skip
        return (
            f"has enqueued nothing since #{counted[0]}"
            if len(counted) == 1 and counted[0] >= 0
            else "has enqueued nothing"
        )
    place = user_frame(operations[0].frames)
    at = f" at {place}" if place else ""
    return f"has enqueued nothing since {operations[0].op} #{operations[0].seq}{at}, which is done"
