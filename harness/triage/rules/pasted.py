"""Rule about pasted stacks: one look without a time. It groups who stands where, and proves nothing from it.

Whoever stands elsewhere than the most is named as standing elsewhere, not as a culprit: the others may have been on
their way at that moment.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import PurePath

from harness.triage import inner_waits, wchan
from harness.triage.evidence import PASTED, UNREAD, DumpSignal, LogError, Thread
from harness.triage.graph import Subject
from harness.triage.graph.edges import title
from harness.triage.graph.motion import BETWEEN_RANKS
from harness.triage.pasted.errors import DEFUNCT, may_be_of_another_job
from harness.triage.pasted.watchdog import SEVERAL
from harness.triage.rules import standing
from harness.triage.rules.ruling import Case, Ruling, brief
from harness.triage.stacks import classify
from reports.sections.triage import ranks
from reports.text import agreeing

_LOOK = "harness triage PID"
_PASTE_MORE = "py-spy dump -p PID > rank_N.txt   # for each process of which nothing was pasted"
# Functions in which a server waits until the processes that it started are ready: SGLang 0.5.23, vLLM 0.32.0.
STARTERS = frozenset({"_wait_for_scheduler_ready", "_launch_subprocesses", "wait_for_engine_startup"})
MAX_WHO = 5  # words for processes in a headline
MAX_WHAT = 9  # words for what happened in a headline: "ran out of GPU memory while it ran backward"
MAX_FAILURES = 3  # of a log, in the evidence of the verdict


def one_look(case: Case) -> Ruling | None:
    """INSUFFICIENT: says who stands where, and who stands elsewhere than the most."""
    looked = _looked(case)
    has_stacks = any(process.samples for process in case.evidence.processes)  # of launchers too
    if case.evidence.source != PASTED or case.groups or not has_stacks:
        return None
    working = [subject for subject in looked if not _awaits_children(subject)]
    places = standing.places_of(working or looked)
    twice = _twice(case)
    size = sum(len(place.subjects) for place in places)
    most = places[0] if twice is None and places and 2 * len(places[0].subjects) > size else None
    free = _alone(places, size)
    named_places = standing.rarest(places[1:])[:1] if most is not None else free
    return Ruling(
        "INSUFFICIENT",
        _headline(
            places, twice, case.evidence.directories, all_read=not any(UNREAD in note for note in case.evidence.notes)
        ),
        evidence=(
            *(
                f"{standing.line(case, place, most)}{standing.gates_text(place)}"
                for place in places[: standing.MAX_LINES]
            ),
            *(f"{place.who} alone waits in no communication: the others may wait for it" for place in free),
            *_below(looked),
            *_beside(looked),
            *_failures(case),
        ),
        missing=(*_missing(case), *_groups_wanted(places)),
        place="".join(place.words for place in named_places or (places if len(places) == 1 else ())),
        next=(
            *(
                [f"harness triage {shlex.quote(folder)}" for folder in case.evidence.directories]
                if twice is not None
                else ()
            ),
            "harness triage PID   # of any process of the job, while it stands: two looks, sockets, recorders",
            "" if _all_pasted(case) else _PASTE_MORE,
            "for the next run: harness watch -- COMMAND, which takes the evidence when the job stops",
        ),
    )


def _groups_wanted(places: Sequence[standing.Place]) -> list[str]:
    """What only recorders say of ranks that all wait at one place."""
    is_shared = len(places) == 1 and len(places[0].subjects) > 1
    return [standing.GROUPS_WANTED] if is_shared and places[0].subjects[0].doing.kind in BETWEEN_RANKS else []


def _awaits_children(subject: Subject) -> bool:
    """Whether it waits for processes that it started, by their end or by their first word."""
    threads = subject.process.threads
    functions = {frame.function for thread in threads if thread.main for frame in thread.frames}
    return subject.doing.kind == "join" or (subject.rank is None and bool(functions & STARTERS))


def _alone(places: Sequence[standing.Place], size: int) -> list[standing.Place]:
    """The one place of fewer than half of the processes at which nobody waits in communication, while all others do."""
    free = [place for place in places if not place.waits]
    return free if len(free) == 1 and len(places) > 1 and 2 * len(free[0].subjects) < size else []


def in_kernel(case: Case) -> Ruling | None:
    """INSUFFICIENT: only stacks of the kernel were pasted. They say what each process waited for at one moment."""
    processes = [process for process in case.evidence.processes if process.samples]
    asleep = [process for process in processes if process.last_look.wchan]
    if case.evidence.source != PASTED or case.groups or not asleep or any(each.last_look.threads for each in processes):
        return None
    lines = []
    for process in asleep[: standing.MAX_LINES]:
        function = process.last_look.wchan
        awaited = wchan.words(function)
        lines.append(
            f"process {process.pid} was in {function} of the kernel{f': it waits for {awaited}' if awaited else ''}"
        )
    return Ruling(
        "INSUFFICIENT",
        lines[0],
        evidence=tuple(lines[1:]),
        missing=("a second look: whether it stays there", "the Python stacks of these processes"),
        place=f"{asleep[0].last_look.wchan} of the kernel",
        next=(
            f"cat /proc/{asleep[0].pid}/stack; grep State /proc/{asleep[0].pid}/status   # again: D is a wait that no "
            "signal ends",
            "harness triage PID   # of any process of the job, while it stands: two looks, sockets, recorders",
        ),
    )


def first_error(case: Case) -> Ruling | None:
    """INSUFFICIENT: a log says which process failed first; nothing was pasted that says who waits.

    Errors that tell of another process's end come last, and those that a process survived before them. In several
    logs without times the order of lines says nothing, so the first of each is told.
    """
    logged = case.evidence.errors
    if case.evidence.source != PASTED or case.groups or not logged or (_looked(case) and not _ending(case)):
        return None
    beside = one_look(case)
    if ended := [error for error in logged if DEFUNCT in error.text]:
        return _defunct(case, ended)
    firsts = _firsts(_ending(case) or [error for error in logged if not error.echo] or logged)
    if all(error.survived for error in logged):
        return _outlived(case, logged)
    more = len(logged) - 1
    later = f"; {more} more {agreeing(more, 'line', 'lines')}" if more else ""
    ends = _ends(case) if firsts[0].echo else ()
    return _first_failure(
        firsts, later, (*_followed(case, firsts[0]), *_lost(case, firsts), *ends, *(beside.evidence if beside else ())),
        ("stacks of the processes that still stand, if any does", *(beside.missing if beside else ())),
    )  # fmt: skip


def _outlived(case: Case, logged: Sequence[LogError]) -> Ruling:
    """INSUFFICIENT: the log has errors, and whoever met them went on with its work after each of them."""
    last = logged[-1]
    return Ruling(
        "INSUFFICIENT",
        f"no final failure: {last.of} {brief(last.what, 5)} in line {last.line}, and went on",
        evidence=(
            *(f"{error.file}:{error.line}: {error.of}: {error.text}" for error in logged[: standing.MAX_LINES]),
            *_ends(case),
        ),
        missing=("what the job did last, and who ended it if it has ended",),
        next=("read the end of the log", "harness triage PID   # of any process of the job that still stands"),
    )


def _defunct(case: Case, ended: list[LogError]) -> Ruling:
    """INSUFFICIENT: a list of processes has some that have ended. Its order says nothing, so the name that most of them
    have comes first."""
    names = Counter(error.role for error in ended)
    name, count = names.most_common(1)[0]
    pids = f"{agreeing(count, 'pid', 'pids')} {ranks(sorted(error.pid for error in ended if error.role == name))}"
    unnamed = sum(names.values()) - count
    are_defunct = agreeing(count, "is defunct", "are defunct")
    return Ruling(
        "INSUFFICIENT",
        f"{count} {agreeing(count, 'process', 'processes')} called {name} ended and {are_defunct}: {pids}",
        evidence=(
            f"defunct: {name}, {pids}; their parent has not asked how they ended",
            *([f"{unnamed} more: {', '.join(sorted(set(names) - {name})[:MAX_FAILURES])}"] if unnamed else ()),
        ),
        missing=("why they ended: their own last lines", "stacks of the processes that still stand, if any does"),
        place=f"{PurePath(ended[0].file).name}:{ended[0].line}",
        next=(ended[0].fix, "harness triage PID   # of their parent: who waits for them"),
    )


def stalled(case: Case) -> Ruling | None:
    """HUNG: watchdogs that count time report that processes made no progress, and no failure came before.

    SGLang ends a scheduler that finished no forward pass for so long, and the kernel reports a task that did not
    wake up. These lines have the history that one look lacks. Who is behind it they do not say, except for a task
    that the kernel holds (K9).
    """
    ending = _ending(case)
    if case.evidence.source != PASTED or case.groups or not ending or not all(error.stalled_s for error in ending):
        return None
    in_kernel = {f"{error.host or PASTED}:{error.pid}": error for error in ending if error.pid}
    stall_s = max(error.stalled_s for error in in_kernel.values() or ending)
    why = {key: f"{error.what} for more than {stall_s:.0f} s" for key, error in in_kernel.items()}
    names = list(dict.fromkeys(error.of for error in (in_kernel.values() or ending)))
    who = names[0] if len(names) == 1 else f"{len(names)} processes"
    are = agreeing(len(names), "is", "are")
    headline = (
        f"{who} {are} held by the kernel for more than {stall_s:.0f} s"
        if in_kernel
        else f"{who} made no progress for {stall_s:.0f} s, by SGLang's watchdog; nobody is provable"
    )
    stacks = one_look(case)
    return Ruling(
        "HUNG",
        headline,
        "K9" if in_kernel else "",
        why,
        place=next(iter(why.values()), ""),
        evidence=(
            *(f"{error.file}:{error.line}: {error.of}: {error.text}" for error in ending[: standing.MAX_LINES]),
            *_threads_at_work(case),
            *(stacks.evidence if stacks else ()),
        ),
        missing=() if in_kernel else ("who is behind it: the processes of other nodes, and their stacks",),
        next=(ending[0].fix, "for the next run: harness watch -- COMMAND, which takes the evidence when it stops"),
    )


def _threads_at_work(case: Case) -> list[str]:
    """Where side threads stand whose main thread only waits for one of them: a forward pass in a thread, say."""
    lines = []
    for subject in _looked(case):
        threads = subject.process.threads
        if subject.doing.kind not in ("lock", "queue", "user", "join"):
            continue
        for thread in threads:
            doing = classify(thread)
            if not thread.main and not doing.idle and doing.frame and doing.kind not in ("lock", "queue", "select"):
                lines.append(f"{subject.label}, thread {thread.name}: {doing.frame} ({doing.op or doing.kind})")
    return lines[: standing.MAX_LINES]


def signalled(case: Case) -> Ruling | None:
    """INSUFFICIENT: ranks were told that another one had given up a collective, and nothing else is known of the job.
    Their counters say whether they waited in one themselves."""
    signals = case.evidence.dump_signals
    if case.evidence.source != PASTED or case.graph.subjects or case.groups or case.evidence.errors or not signals:
        return None
    behind = [signal for signal in signals if signal.enqueued <= signal.completed]
    first = (behind or list(signals))[0]
    numbers = f"rank {first.rank} completed all {max(first.enqueued, 0):,} that it enqueued, and waits in none"
    waits = f"rank {first.rank} waits, too: {first.enqueued:,} enqueued, {first.completed:,} completed"
    return Ruling(
        "INSUFFICIENT",
        f"rank {first.of} gave up a collective; {numbers if behind else waits}",
        place=f"group {first.group}" if first.group else "",
        evidence=(*map(_signal, list(signals)[: standing.MAX_LINES]), *_ends(case)),
        missing=(
            f"the lines of rank {first.of} about its timeout: in which operation of which number it waited",
            "the lines of the other ranks: a rank that enqueued less than those that wait has not come",
        ),
        next=(
            f"read the log of rank {first.of} to the same time, then give all logs at once: harness triage *.log",
            f"py-spy dump --pid PID   # of rank {first.rank}, while it stands: where it is",
        ),
    )


def _signal(signal: DumpSignal) -> str:
    of_group = f" of group {signal.group}" if signal.group else ""
    idle = ", so that it waits in none" if signal.enqueued <= signal.completed else ""
    return (
        f"rank {signal.rank} was told by rank {signal.of} that a collective timed out; its last{of_group}: enqueued "
        f"#{signal.enqueued}, completed #{signal.completed}{idle}"
    )


def last_lines(case: Case) -> Ruling | None:
    """INSUFFICIENT: nothing known is in the text. Says how it ends, and what to collect."""
    ends = case.evidence.log_ends
    if case.evidence.source != PASTED or case.graph.subjects or case.groups or case.evidence.errors or not ends:
        return None
    files = list(dict.fromkeys(end.file for end in ends))
    where = PurePath(files[0]).name if len(files) == 1 else f"{len(files)} texts"
    most = max(ends, key=lambda end: (end.processes, end.line))
    who = (
        f"{most.who} ended with"
        if 0 < len(most.who.split()) <= MAX_WHO
        else "it ends with"
        if len(files) == 1
        else "one ends with"
    )
    longest = max(case.evidence.log_phases, key=lambda phase: phase.took_s, default=None)
    return Ruling(
        "INSUFFICIENT",
        f"{where} has timeouts of several incidents, and no times tell them apart"
        if SEVERAL in case.evidence.notes
        else f"nothing recognised in {where}; {who}: {brief(most.text, 6)}",
        evidence=(
            "no Python stack, no error of a job and no line about a timeout is in it",
            *([f"its longest phase: {longest.words} ({longest.file}:{longest.line})"] if longest else ()),
            *_ends(case),
        ),
        missing=(
            "stacks of the Python processes that stand: where each of them is",
            "how old the last line is: compare its time with the clock of its host",
        ),
        place=f"{PurePath(most.file).name}:{most.line}",
        next=(
            "py-spy dump --pid PID > rank_N.txt   # of each process on each node, then: harness triage *.txt",
            "harness triage PID   # of any process of the job, while it stands: two looks, sockets, children",
            "NCCL_DEBUG=INFO TORCH_DISTRIBUTED_DEBUG=DETAIL COMMAND   # a start that stops again says more",
        ),
    )


def _ends(case: Case) -> list[str]:
    """How the logs end, one line for each last line of processes."""
    error_lines = {(error.file, error.line) for error in case.evidence.errors}
    ends = [end for end in case.evidence.log_ends if (end.file, end.line) not in error_lines][: standing.MAX_LINES]
    return [f"{end.file}: {end.who or 'it'} ended with line {end.line} of {end.lines:,}: {end.text}" for end in ends]


def first_error_of_waiters(case: Case) -> Ruling | None:
    """INSUFFICIENT: a log says which process failed first, and in what others waited then; the counters of their
    recorders alone name nobody."""
    if case.evidence.source != PASTED or not case.groups or not (ending := _ending(case)):
        return None
    ends = {error.rank for error in ending if error.rank is not None}
    waiters = [subject for subject in case.graph.stuck() if subject.pending is not None and subject.rank not in ends]
    if not waiters:
        return None
    names = case.names(subject.key for subject in waiters)
    verb = agreeing(len(waiters), "waits", "wait")
    numbers = {subject.rank for subject in case.graph.subjects.values()}
    gaps = [rank for rank in range(max((rank or 0 for rank in numbers), default=0)) if rank not in numbers]
    gaps = gaps or [*case.comparison.absent] if case.comparison else gaps
    firsts = _firsts(ending)
    silent = firsts[0].rank is None and len(gaps) == 1
    return _first_failure(
        firsts,
        f"; {names} {verb} since",
        (
            *(f"{subject.label}: {subject.state()}" for subject in waiters[: standing.MAX_LINES]),
            *([f"nothing is known of rank {gaps[0]}: it may be the process that failed"] if silent else ()),
        ),
        _unknown_members(waiters, case),
    )


def _unknown_members(waiters: Sequence[Subject], case: Case) -> tuple[str, ...]:
    """What is missing where no dump says who is in the group in which they wait."""
    names = {subject.pending.group for subject in waiters if subject.pending}
    if all(group.group.members for group in case.groups if group.group.name in names):
        return ()
    return ("the members of the group in which they wait, and what it was that they waited for",)


def without_dump(case: Case) -> Ruling | None:
    """INSUFFICIENT: by the recorders some wait, and for a rank without a dump there is one stack. It says where that
    rank stood, and not that it stayed there."""
    if case.evidence.source != PASTED or not case.comparison:
        return None
    recorded = set(case.comparison.ranks)
    ends = [end for end in case.sinks() if end.process.samples and end.rank not in recorded
            and end.doing.frame and not end.stuck]  # fmt: skip
    waiters = [case.subject(key) for key in case.graph.waiters({end.key for end in ends})]
    if not ends or not any(waiter.pending is not None for waiter in waiters):
        return None
    where = case.waited_in(end.key for end in ends)
    names = case.names(end.key for end in ends)
    has = agreeing(len(ends), "has", "have")
    return Ruling(
        "INSUFFICIENT",
        f"{names} {has} no dump and stood at {ends[0].doing.frame}; others wait in {where}",
        evidence=tuple(f"{end.label} stood elsewhere: {end.state()}" for end in ends[: standing.MAX_LINES]),
        missing=(
            f"a second look at {names}, or the dump: whether it stands there",
            *(f"no recorder data from {end.label}" for end in ends[: standing.MAX_LINES]),
        ),
        place=ends[0].doing.frame,
        next=(
            "py-spy dump -p PID   # of that rank, twice: does it stand there?",
            "for the next run: harness watch -- COMMAND, which takes the evidence when the job stops",
        ),
    )


def timed_out(case: Case) -> Ruling | None:
    """INSUFFICIENT: NCCL's watchdog ended ranks whose collective did not end in time; nothing says for whom they
    waited."""
    waiters = [subject for subject in case.graph.stuck() if subject.pending is not None]
    if case.evidence.source != PASTED or not case.groups or not waiters or not case.evidence.timed_out_s:
        return None
    who = case.names(subject.key for subject in waiters)
    pending = waiters[0].pending
    places = {(subject.pending.op, subject.pending.seq) for subject in waiters if subject.pending}
    where = f"{pending.op} #{pending.seq}" if pending and len(places) == 1 else f"{len(places)} operations"
    waited_s = f"{case.evidence.timed_out_s:.0f}"
    ended = {subject.rank for subject in waiters} <= {*case.evidence.watchdog_ended}
    if through := [(subject, peers) for subject in waiters if (peers := _through(case, subject))]:
        return _beyond(case, *through[0], waited_s)
    return Ruling(
        "INSUFFICIENT",
        f"first to end: {who}, by NCCL's watchdog, {waited_s} s into {where}; nothing says for whom"
        if ended
        else f"{who} waited {waited_s} s in {where} until the watchdog gave up; nothing says for whom",
        place=f"in {where}",
        evidence=(
            *(_counted(case, subject) for subject in waiters[: standing.MAX_LINES]),
            *_late(case),
            *_failures(case),
            *(_echoes(case) if ended else ()),
            *_ends(case),
        ),
        missing=("the ranks that wrote no line: whether they came late, stood elsewhere or had died before",),
        next=(
            "read the logs of the other ranks and nodes to the same time: the last line of each",
            "for the next run: harness watch -- COMMAND, which records groups and open spans",
        ),
    )


def _through(case: Case, subject: Subject) -> dict[int, int]:
    """The ranks that by their counters completed the operation in which this one waits, each with its last one."""
    pending = subject.pending
    groups = [group for group in case.groups if pending is not None and group.group.name == pending.group]
    completed = {rank: state.completed for group in groups for rank, state in group.ranks.items()}
    names = {name for group in groups for name in (group.group.name, group.group.desc)}
    # A rank that waits in nothing is in no group whose members no line shows: its counters alone say where it is.
    completed |= {signal.rank: signal.completed for signal in case.evidence.dump_signals if signal.group in names}
    return {
        rank: last
        for rank, last in sorted(completed.items())
        if pending is not None and rank != subject.rank and last >= pending.seq
    }


def _beyond(case: Case, subject: Subject, peers: dict[int, int], waited_s: str) -> Ruling:
    """INSUFFICIENT: a rank waits in an operation that peers of its group completed. They do not hold it up; it was left
    alone by its own device or network, or has another count than they."""
    pending = subject.pending
    assert pending is not None
    operation, who = f"{pending.op} #{pending.seq}", standing.ranks_text(list(peers))
    return Ruling(
        "INSUFFICIENT",
        f"{who} completed #{pending.seq}, the {pending.op} in which {subject.label} waited {waited_s} s",
        place=f"in {operation}",
        evidence=(
            *(f"rank {rank}: last completed #{completed}" for rank, completed in peers.items()),
            _counted(case, subject),
            *_late(case),
            *_failures(case),
            *_ends(case),
        )[: standing.MAX_LINES],
        missing=(
            f"whether the device or network of {subject.label} stopped after {who} had what they needed, or its "
            f"#{pending.seq} is another operation than theirs",
        ),
        about=(subject.key,),
        next=(
            f"nvidia-smi; dmesg | grep -i xid   # on the host of {subject.label}",
            f"count the operations of one step on {subject.label} and on {who}: equal numbers may be of different ones",
            "for the next run: harness watch -- COMMAND, which records each operation with its shapes",
        ),
    )


def _counted(case: Case, subject: Subject) -> str:
    """In what a rank waits, with its sizes and the counters of its group."""
    pending = subject.pending
    states = [(group, state) for group in case.groups for state in group.ranks.values()
              if state.rank == subject.rank and state.pending == pending]  # fmt: skip
    if pending is None or not states:
        return f"{subject.label}: {subject.state()}"
    group, state = states[0]
    sizes = " -> ".join(map(str, map(list, pending.sizes)))
    counters = f"last enqueued #{state.enqueued}, last completed #{state.completed}" if state.completed >= 0 else ""
    return "; ".join(filter(None, (f"{subject.label}: {subject.state(title(group))}", sizes, counters)))


def _echoes(case: Case) -> list[str]:
    """What others met, who may have lost those that the watchdog ended."""
    echoes = {(error.of, error.what): error for error in reversed(case.evidence.errors) if error.echo}
    return [
        f"{error.of} {brief(error.what, 16)}, which may be a consequence ({error.file}:{error.line})"
        for error in [*echoes.values()][::-1][:MAX_FAILURES]
    ]


def _late(case: Case) -> list[str]:
    """Phases in the logs that took longer than the watchdog lets an operation wait: their process may have come late
    without a hang."""
    return [
        f"{phase.words}, longer than that wait: who did it may have come late ({phase.file}:{phase.line})"
        for phase in case.evidence.log_phases
        if phase.took_s > case.evidence.timed_out_s
    ][:MAX_FAILURES]


def _first_failure(firsts: list[LogError], then: str, evidence: Iterable[str], missing: tuple[str, ...]) -> Ruling:
    first = firsts[0]
    name = PurePath(first.file).name
    # Of equal lines of one moment, of echoes, or of ranks that one line names, none is the first.
    equal = [error for error in firsts if error.what == first.what and (
        first.echo or error.at == first.at is not None or _line(error) == _line(first))]  # fmt: skip
    names = list(dict.fromkeys(error.of for error in equal)) or [first.of]
    who = " and ".join(names) if len(names) < 3 else f"{len(names)} processes"
    if len(names) > 1 and len({_line(error) for error in equal}) == 1:
        who = standing.ranks_text([error.rank for error in equal if error.rank is not None]) or who
    unordered = len({error.file for error in firsts}) > 1 and any(error.at is None for error in firsts)
    what = "no first failure in the log" if first.echo else f"first failure{f' in {name}' if unordered else ''}"
    full_text = f"{first.of} {first.what}"
    echoed = ("the process that failed or stood: its own lines, or its stack",) if first.echo else ()
    return Ruling(
        "INSUFFICIENT",
        f"{what}: {who} {brief(_in_short(first.what), MAX_WHAT if len(names) == 1 else 5)}{then}",
        evidence=(*((full_text,) if len(first.what.split()) > MAX_WHAT else ()),
                  *(f"{error.file}:{error.line}: {error.of}: {error.text}" for error in firsts[: standing.MAX_LINES]),
                  *evidence),
        missing=(*echoed, *missing),
        place=f"{name}:{first.line}",
        next=(first.fix, "" if _LOOK in first.fix else f"{_LOOK}   # of any process of the job that still stands"),
    )  # fmt: skip


def _in_short(what: str) -> str:
    """What happened, without what is said behind a colon where that is too long for a headline."""
    return what if len(what.split()) <= MAX_WHAT else what.partition(":")[0]


def _looked(case: Case) -> list[Subject]:
    """Processes of which a stack was pasted."""
    return [subject for subject in case.live() if subject.process.samples]


def _ending(case: Case) -> list[LogError]:
    """Errors of a process' own, after which it did no more work and waited for nobody."""
    waiting = {subject.rank for subject in case.graph.subjects.values() if subject.pending is not None}
    return [
        error for error in case.evidence.errors
        if not (error.echo or error.survived or (error.rank is not None and error.rank in waiting))
    ]  # fmt: skip


def _firsts(logged: Sequence[LogError]) -> list[LogError]:
    """The first error by time where all have one; otherwise the first of each file. What may be of another job comes
    last."""
    if all(error.at is not None for error in logged):
        firsts = sorted(logged, key=lambda error: error.at or ())
    else:
        firsts = list({error.file: error for error in reversed(logged)}.values())[::-1]
    firsts = sorted(firsts, key=may_be_of_another_job)[:MAX_FAILURES]
    beside = [error for error in logged if error not in firsts and _line(error) == _line(firsts[0])]
    return [firsts[0], *beside, *firsts[1:]]


def _line(error: LogError) -> tuple[str, int]:
    """Where an error stands; a line may tell of several ranks."""
    return error.file, error.line


def _followed(case: Case, first: LogError) -> list[str]:
    """The failures of others that the same log has after the first one."""
    at = case.evidence.errors.index(first)
    later = [error for error in case.evidence.errors[at + 1 :] if error.file == first.file and not error.echo]
    return [f"then {error.of} {brief(error.what, 16)} (line {error.line})" for error in later[:MAX_FAILURES]]


def _lost(case: Case, firsts: Sequence[LogError]) -> list[str]:
    """What other ranks met because of the first failure, in the words of their logs; equal ends together."""
    if firsts[0].echo:
        return []
    failed = {error.rank for error in firsts}
    by_end: dict[str, list[LogError]] = {}
    for error in case.evidence.errors:
        if error.echo and error.rank is not None and error.rank not in failed:
            by_end.setdefault(error.what, []).append(error)
    return [
        f"{standing.ranks_text(sorted({error.rank for error in echoes if error.rank is not None}))} "
        f"{brief(what, 16)}, which may be a consequence ({echoes[0].file}:{echoes[0].line})"
        for what, echoes in list(by_end.items())[:MAX_FAILURES]
    ]


def _failures(case: Case) -> list[str]:
    failures = [error for error in case.evidence.errors if not error.echo]
    return [f"{error.of} {error.what} ({error.file}:{error.line})" for error in failures[:MAX_FAILURES]]


def _headline(places: list[standing.Place], twice: int | None, folders: Sequence[str], *, all_read: bool) -> str:
    if not places:
        return "the stacks are of launchers only: no rank of the job is among them"
    if twice is not None:
        return f"rank {twice} is there twice: stacks of {max(len(folders), 2)} jobs, or of several roles of one"
    if len(places) == 1:
        alone = len(places[0].subjects) == 1
        quiet = "nobody stands elsewhere" if all_read else "not every file could be read"
        threads = standing.side_threads(places[0].subjects[0]) if alone else []
        if len(threads) == 1:
            return f"{places[0].who} at {places[0].words}; {threads[0]}: one look only"
        if threads:
            return f"{places[0].who} at {places[0].words}; {len(threads)} threads beside it: one look only"
        return f"{places[0].who} at {places[0].words}: {'nobody else to compare it with' if alone else quiet}"
    return standing.headline(places)


def _beside(looked: Sequence[Subject]) -> list[str]:
    """Threads beside the main ones that may wait for a lock: two that wait for each other's are in one process."""
    lines = [f"{subject.label}, {place}" for subject in looked for place in standing.side_threads(subject)]
    more = len(lines) - standing.MAX_LINES
    return [*lines[: standing.MAX_LINES], *([f"{more} more threads"] if more > 0 else [])]


def _below(looked: Sequence[Subject]) -> list[str]:
    """Main threads that wait for a lock of the interpreter or for threads of a native library."""
    waits = ((subject, inner_waits.of_process(subject.process)) for subject in looked)
    lines = [f"{subject.label} waits for {inner.words}" for subject, inner in waits if inner is not None]
    return lines[: standing.MAX_LINES]


def _twice(case: Case) -> int | None:
    """A rank that two processes of one program claim; None without one."""
    claims: dict[tuple[int, str], int] = {}
    for subject in _looked(case):
        if subject.rank is not None:
            claim = subject.rank, subject.role
            claims[claim] = claims.get(claim, 0) + 1
    return min((rank for (rank, _), count in claims.items() if count > 1), default=None)


def _all_pasted(case: Case) -> bool:
    """Whether there is a stack of every rank of the world."""
    numbers = {subject.rank for subject in _looked(case)}
    return bool(case.evidence.expected_world) and numbers >= {*range(case.evidence.expected_world or 0)}


def _threads(case: Case) -> list[Thread]:
    return [thread for subject in _looked(case) for thread in subject.process.threads]


def _missing(case: Case) -> list[str]:
    lines = ["a second look: whether the processes stand still is not known from one"]
    numbers = {subject.rank for subject in _looked(case) if subject.rank is not None}
    if not case.evidence.expected_world and numbers and (gaps := [n for n in range(max(numbers)) if n not in numbers]):
        lines.append(f"stacks of {standing.ranks_text(gaps)}, below the highest rank that is there")
    if not case.evidence.expected_world and numbers:
        lines.append("the number of ranks of the job, which no command line says")
    frames = [frame for thread in _threads(case) for frame in thread.frames]
    if frames and not any(frame.file.endswith((".py", ">")) for frame in frames):  # or <string>, <frozen runpy>
        lines.append("the Python frames: these are of C alone (py-spy dump --pid PID, or gdb with py-bt, prints both)")
    between = ("collective", "p2p", "store")
    if unnamed := [subject for subject in case.live() if subject.rank is None and subject.doing.within(*between)]:
        lines.append(
            f"the rank of {case.names(subject.key for subject in unnamed)}: call the file rank_N.txt, or keep the "
            "prefix [rankN]: of its lines"
        )
    return lines
