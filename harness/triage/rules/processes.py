"""Rules about one process that explains the others: the kernel or the interpreter lock holds it (K9), or it died
(K4)."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from harness.triage.echoes import OUT_OF_MEMORY, is_echo, name_of
from harness.triage.evidence import PASTED, LogError, Process
from harness.triage.graph import Subject, calls
from harness.triage.graph.edges import may_need, superseded
from harness.triage.graph.subjects import is_silent
from harness.triage.graph.worlds import same_world
from harness.triage.pasted.errors import READ_ON
from harness.triage.rules.bystanders import elsewhere, explains, lost
from harness.triage.rules.ruling import Case, Live, Native, Ruling, brief
from harness.triage.stacks import describe
from probes.signal_codes import exit_code_of
from reports.text import agreeing

# By a launcher or a watchdog, after a peer's end, or by the end of whoever read what it writes; in a shell too.
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGABRT, signal.SIGPIPE)
BROUGHT_DOWN = frozenset(code for number in _SIGNALS for code in (-number, exit_code_of(number)))
# An error is dated by the end of its process, which closes its connections before that and takes a moment to end: of
# two ends that are no further apart, neither is known to be the first.
TOGETHER_S = 2.0
_MISSES_NO_RANK = frozenset({"http_client", "join"})
MAX_LOGGED = 3  # errors of a pasted log, in the evidence of a verdict
LAST_S = 5.0  # seconds before the end; an error with more work after it did not stop the process


def blocked(case: Case) -> Ruling | None:
    """K9: a process is stopped, in uninterruptible sleep or stuck with the interpreter lock held, while others wait
    for it; or all live processes are stopped."""
    blocked_subjects = [subject for subject in case.live() if subject.blocked and _counts(case, subject)]
    if not blocked_subjects or (first := blocked_subjects[0].blocked) is None:
        return None
    waiters = [
        subject
        for subject in case.live()
        if subject.key not in {each.key for each in blocked_subjects} and subject.stuck
    ]
    keys = [subject.key for subject in blocked_subjects]
    matters_alone = any(subject.rank is not None for subject in blocked_subjects) or _all_stopped(case)
    if not waiters and not case.graph.waiters(set(keys)) and not matters_alone:
        return None
    where = case.waited_in(keys)
    reason = f"{case.names(keys)}: {first}"
    return Ruling(
        "HUNG",
        reason,
        "K9",
        {subject.key: str(subject.blocked) for subject in blocked_subjects},
        place=where or str(first),
        evidence=(*_of_whom(case, blocked_subjects), *((f"others wait in {where}",) if where else ())),
        next=(*to_free(blocked_subjects), "the network is not to blame"),
    )


def to_free(blocked_subjects: list[Subject]) -> tuple[str, ...]:
    """What to do about processes that are held, by what holds the first of them."""
    first = blocked_subjects[0].blocked if blocked_subjects else None
    if first is None:
        return ()
    pids = [str(subject.process.pid) for subject in blocked_subjects]
    if first.by == "stop":
        return (Live(f"kill -CONT {' '.join(pids)}   # and find out who stopped it"),)
    if first.by == "sleep":
        return ("look at storage: dmesg, the mount of the file in its stack",)
    called = f"read what is called at {at}: it keeps the interpreter lock" if (at := blocked_subjects[0].frame) else ""
    return called, Native.dump("the C call that keeps the interpreter lock", *pids[:1])


def _of_whom(case: Case, blocked_subjects: list[Subject]) -> tuple[str, ...]:
    """The title of the one held process and who started it, in words; empty for a trainer's rank. A tokenizer or a
    scheduler is recognised by that."""
    process = blocked_subjects[0].process
    if len(blocked_subjects) > 1 or (blocked_subjects[0].rank is not None and not process.engine):
        return ()
    parent = case.graph.subjects.get(f"{process.host}:{process.ppid}")
    below = f"a child of {parent.label}" if parent is not None and not parent.launcher else ""
    whose = ", ".join(filter(None, (process.title, below)))
    return (f"it is {whose}",) if whose else ()


def _counts(case: Case, subject: Subject) -> bool:
    """Whether a held process matters: it can be why the others wait, or it is a rank and nobody waits elsewhere, or
    all are stopped."""
    if explains(case, subject) or _all_stopped(case):
        return True
    return subject.rank is not None and not elsewhere(case, {subject.key}) and not lost(case)


def _all_stopped(case: Case) -> bool:
    return all(subject.blocked is not None and subject.blocked.by == "stop" for subject in case.live())


def died(case: Case) -> Ruling | None:
    """K4: a process ended, or failed and stayed alive, while others wait for it. The first error is the cause."""
    stuck = [waiter for waiter in case.graph.stuck() if not waiter.ended]
    waiting = stuck or [subject for subject in case.live() if subject.key in case.graph.waiting]
    if not waiting:
        return None
    dead = [*_ended(case, waiting), *_failed(case)]
    dead += _dead_actors(case, dead)
    if not dead:
        return None
    why = {subject.key: _why(subject) for subject in _to_blame(case, dead)}
    where = case.waited_in(why)
    ends = dict.fromkeys(why.values())
    reason = f"{case.names(why)} {brief(next(iter(ends)), 12)}" if len(ends) == 1 else f"{case.names(why)} failed"
    reader = _reader(case, why)
    reason += f"; {reader.label} waits for what it writes at {_line(reader)}" if reader is not None else ""
    logged = _logged(case, why)
    fixes = dict.fromkeys(error.fix for error in logged if error.fix not in ("", READ_ON))
    steps = [*fixes, *_steps([case.subject(key) for key in why])]
    if reader is not None:
        steps.append(f"give the read at {_line(reader)} a time limit, and look then whether whoever writes lives")
    return Ruling(
        "HUNG",
        reason,
        "K4",
        why,
        place=where,
        evidence=tuple(f"{error.file}:{error.line}: {error.of} {error.what}" for error in logged[:MAX_LOGGED]),
        next=tuple(steps),
    )


def _reader(case: Case, why: dict[str, str]) -> Subject | None:
    """A process that reads a queue or connection of multiprocessing which only these could fill."""
    waits = (wait for wait in case.graph.waits if wait.target in why and wait.layer == "process")
    readers = [reader for wait in waits if (reader := case.subject(wait.waiter)).doing.kind == "queue"]
    return readers[0] if len(readers) == 1 and readers[0].frame else None


def _line(subject: Subject) -> str:
    return subject.frame.partition(" in ")[0]


def _logged(case: Case, keys: Iterable[str]) -> list[LogError]:
    """The errors with which these processes ended, by a log that was pasted."""
    errors = {(error.rank, error.text): error for error in reversed(case.evidence.errors)}
    processes = [case.subject(key).process for key in keys]
    return [error for process in processes if (error := errors.get((process.rank, process.error))) is not None]


def unwritten(case: Case) -> Ruling | None:
    """K4: a process reads a queue whose writers have ended, and nothing that was seen tells who they were."""
    readers = [subject for subject in case.suspects() if calls.unwritten(subject)]
    if not readers:
        return None
    keys = {reader.key for reader in readers}
    where = {reader.key: f"{reader.doing.op}, {reader.frame}" for reader in readers}
    where |= {key: f"{case.subject(key).doing.op}, for {case.names(keys)}" for key in case.graph.waiters(keys)}
    reads = agreeing(len(readers), "reads", "read")
    return Ruling(
        "HUNG",
        f"{case.names(keys)} {reads} a queue to which no process is left that could write",
        "K4",
        place=readers[0].frame,
        missing=tuple(f"which process wrote to the queue of {reader.label}: it has ended" for reader in readers[:8]),
        next=(
            "read the end of the log of whoever filled the queue: it ended before its reader",
            "give each read a timeout, and look then whether the process that fills the queue lives",
        ),
        waiting=where,
        absent=tuple(reader.key for reader in readers),
    )


def kept_open(case: Case) -> Ruling | None:
    """K4: a process reads a pipe to its end, and keeps the end that is written to open itself."""
    readers = [subject for subject in case.suspects() if calls.keeps_open(subject, _children(case, subject))]
    if not readers:
        return None
    why = {reader.key: "it alone has the pipe that it reads open to write, so that its read meets no end"
           for reader in readers}  # fmt: skip
    names, reads = case.names(why), agreeing(len(readers), "reads", "read")
    return Ruling(
        "HUNG",
        f"{names} {reads} a pipe that nobody else can write to any more",
        "K4",
        why,
        place=readers[0].frame,
        next=("close the end that is written to in the process that reads, after the fork: os.close(WRITE_END)",),
    )


def _children(case: Case, parent: Subject) -> list[Subject]:
    return [subject for subject in case.graph.subjects.values() if subject.process.is_child_of(parent.process)]


def _ended(case: Case, waiting: list[Subject]) -> list[Subject]:
    """Processes that have ended, were not started again, and are waited for."""
    awaited = case.awaited()
    return [
        subject
        for subject in case.graph.subjects.values()
        if subject.ended
        and not subject.launcher
        and not superseded(subject.process, case.evidence.processes)
        and (subject.key in awaited or (_unclean(subject.process) and _missed(case, subject, waiting)))
    ]


def _failed(case: Case) -> list[Subject]:
    """Processes that are alive, failed, do nothing more, and are where waiting ends."""
    sinks = {sink.key for sink in case.sinks()}
    return [
        subject
        for subject in case.graph.subjects.values()
        if not subject.ended
        and subject.key in sinks
        and local_error(subject.process)
        and not subject.progress
        and not subject.doing.within("scheduler")
    ]


def _dead_actors(case: Case, dead: list[Subject]) -> list[Subject]:
    """Actors that others wait for and that Ray reports dead, beyond those in `dead`."""
    awaited = case.awaited()
    processes = {(subject.process.host, subject.process.pid) for subject in dead}
    actors = [
        f"{actor.host}:{actor.pid}"
        for actor in case.evidence.ray_actors
        if actor.state == "DEAD" and actor.death and (actor.host, actor.pid) not in processes
    ]
    return [case.subject(key) for key in dict.fromkeys(actors) if key in awaited and key in case.graph.subjects]


def _to_blame(case: Case, dead: list[Subject]) -> list[Subject]:
    """Of the dead, those whose own error came first; without an error those that did not end in good order; else
    all."""
    failed = [subject for subject in dead if local_error(subject.process)]
    if failed:
        return _first(failed, apart=bool(case.evidence.directories))
    return [subject for subject in dead if _unclean(subject.process)] or dead


def _first(failed: list[Subject], *, apart: bool) -> list[Subject]:
    """Those that failed first, as far as that is known. `apart`: choose on each host, because nothing tells on which
    host the first error happened."""
    age = {subject.key: error_age_s(subject.process) for subject in failed}
    hosts = {subject.key: subject.process.host if apart else "" for subject in failed}
    oldest = {host: max(age[key] for key in age if hosts[key] == host) for host in hosts.values()}
    return [subject for subject in failed if age[subject.key] > oldest[hosts[subject.key]] - TOGETHER_S]


def _missed(case: Case, subject: Subject, waiting: list[Subject]) -> bool:
    """Whether the dead process is a rank of the world of somebody who waits, nothing says for whom. Its end then ends
    that wait for all.

    A process that waits for an answer over HTTP misses a server and no rank, and one that waits for the end of its
    children, as a launcher does, misses these. In a world of one nobody misses anybody.
    """
    if subject.process.world_size == 1:
        return False
    peers = [
        waiter
        for waiter in waiting
        if waiter.key not in case.graph.waiting
        and (waiter.pending is not None or waiter.doing.kind not in _MISSES_NO_RANK)
    ]
    return subject.rank is not None and any(
        same_world(subject.process, peer.process) and may_need(peer, subject) for peer in peers
    )


def local_error(process: Process) -> str:
    """The first error of a process that is its own and not the echo of a peer's failure; empty without one."""
    if process.error and not is_echo(process.error):
        return name_of(process.error)
    journal = process.journal
    for age, text in journal.errors[-1:] if journal else ():
        if journal and age - journal.last_age_s < LAST_S and not is_echo(text):
            return text
    return ""


def error_age_s(process: Process) -> float:
    """The age of its first error in seconds; 0 where nothing dates one."""
    if process.error_age_s is not None:
        return process.error_age_s
    return process.journal.errors[0][0] if process.journal and process.journal.errors else 0.0


def _unclean(process: Process) -> bool:
    """Whether it did not end in good order, by its exit code or by a journal that was never closed."""
    if process.exit_code is not None and process.exit_code != 0:
        return True
    return process.journal is not None and not process.journal.closed


def with_failed_ranks(case: Case, ruling: Ruling) -> Ruling:
    """The ruling with a headline about ranks that failed while the others live, where no rule knows who waits for
    them: they may have gone on without these, as after an `except`."""
    live = [subject for subject in case.live() if subject.rank is not None]
    failed = [
        subject
        for subject in case.graph.subjects.values()
        if subject.ended and subject.rank is not None and (local_error(subject.process) or subject.process.exit_code)
        and not superseded(subject.process, case.evidence.processes)
    ]  # fmt: skip
    if ruling.verdict != "INSUFFICIENT" or ruling.culprits or not live or not failed or case.evidence.source == PASTED:
        return ruling
    names = case.names(subject.key for subject in failed)
    ends = {_why(subject) for subject in failed}
    how = brief(ends.pop(), 8) if len(ends) == 1 else "failed"
    return replace(
        ruling,
        reason=f"{names} {how}; whether the others wait for that is not known",
        evidence=(ruling.reason, *ruling.evidence),
        next=(*_steps(failed), *ruling.next),
    )


def _steps(dead: Sequence[Subject]) -> Iterator[str]:
    """What to do about processes that died while others wait for them, by how they ended."""
    left_at = dict.fromkeys(place for subject in dead if (place := _left_at(subject)))
    yield from (f"find out why it calls os._exit at {place} while its peers go on" for place in left_at)
    if dead and all(subject.finished or subject.process.exit_code == 0 for subject in dead):
        if not left_at:
            yield "find out why its program ends while its peers go on: fewer batches, an early return, another branch"
        return
    yield "read the end of its own log: the first error is there, not in its peers' timeouts"
    if any(subject.process.exit_code == -signal.SIGKILL or is_silent(subject.process) for subject in dead):
        yield OUT_OF_MEMORY


def _left_at(subject: Subject) -> str:
    """Where a process ended itself by `os._exit`; empty for one that did not, or not at a place of the program."""
    beat = subject.process.beat
    return describe(beat.raised_at) if beat is not None and beat.exit_status is not None and beat.raised_at else ""


def _why(subject: Subject) -> str:
    error = local_error(subject.process)
    if subject.ended and subject.process.beat is not None and subject.process.beat.exit_status is not None:
        return subject.state()  # its error repeats the call
    if subject.ended:
        return subject.state() + (f": {error}" if error else "")
    return f"{'failed and stayed' if subject.process.samples else 'failed'}: {error}"
