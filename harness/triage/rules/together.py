"""Rule about a process of which no thread can go on: each waits for what only a thread of the same process could bring.

Threads that take locks in two orders, a notification that came before the wait for it, a queue or a future whose
thread has ended. The kernel proves it: at one moment every thread waited, without a limit, for a lock that no other
process uses (`Sample.locked_together`). Which lock a thread keeps is read from the source text. There a name may mean
two objects, but each thread that could make the difference stands still as well.
"""

from __future__ import annotations

import re

from harness.triage import lock_text, source
from harness.triage.evidence import Process, Thread
from harness.triage.graph import Subject
from harness.triage.places import FUTURE, inner_frame, plain, runs_users, users
from harness.triage.rules.alive import in_condition
from harness.triage.rules.alone import END_MARK, matters
from harness.triage.rules.lock_rings import IN_ONE_ORDER
from harness.triage.rules.ruling import MOST_NAMED, Case, Live, Ruling
from harness.triage.rules.threads import MAX_THREADS, crossed, name
from harness.triage.stacks import AT_EXIT, JOINS, ours, user_frame
from reports.text import agreeing

ASK_FIRST = "ask for what is awaited before each wait for a notification: one that comes before the wait is lost"
_QUEUE = "/queue.py"
_POOL = re.compile(r"/concurrent/futures/thread\.py$")


def locked(case: Case) -> Ruling | None:
    """K6 of threads that wait for each other's locks, else K4: no thread of a process can go on."""
    still = [subject for subject in case.suspects() if _stands(subject)]
    keys = {subject.key for subject in still}
    stuck = [subject for subject in still if matters(case, subject, keys, keeps_alive=_keeps_alive(subject))]
    if not stuck:
        return None
    first = stuck[0]
    ring = crossed(first.process)
    at = " and ".join(place.partition(" in ")[0] for place in ring[:MOST_NAMED])
    whose = agreeing(len(stuck), "its", "their")
    return Ruling(
        "HUNG",
        f"{case.names(subject.key for subject in stuck)}: {_reason(first, whose, at)}",
        "K6" if ring or len(_in_two_locks(first.process)) > 1 else "K4",
        {subject.key: _why(subject) for subject in stuck},
        place=ring[0] if ring else _place(first),
        frames={first.key: ring[0] if ring else _place(first)},
        next=_next(first.process, ring),
    )


def _reason(first: Subject, whose: str, at: str) -> str:
    """`at`: places at which threads wait for each other's locks; empty without."""
    if at:
        return f"{whose} threads wait for each other's locks at {at}"
    if tasks := _in_pool(first.process):
        return f"a task of {whose} pool waits at {_line(tasks[0])} for one that no thread is left to run"
    if parties := _at_barrier(first.process):
        return f"{whose} threads wait at {_line(parties[0])} for a party of a barrier that is not left to come"
    if (first.doing.kind, first.doing.op) == AT_EXIT:
        return f"{whose} program is over, and a thread that waits for good keeps it alive"
    return f"none of {whose} threads can go on, each waits for another of them"


def idle(case: Case) -> Ruling | None:
    """INSUFFICIENT: no thread of a process can go on, and it may be meant to wait until a signal."""
    still = [subject for subject in case.live() if _stands(subject)]
    if not still or len(still) < len(case.live()):
        return None
    first = still[0]
    return Ruling(
        "INSUFFICIENT",
        f"{case.names(subject.key for subject in still)}: only a signal ends the wait of all threads",
        evidence=tuple(f"{subject.label}: {_why(subject)}" for subject in still),
        missing=tuple(f"whether {subject.label} is meant to wait until a signal" for subject in still),
        place=first.frame,
        next=(Live(f"{case.again()}   # in a minute: whether a signal has ended its wait"),),
    )


def _stands(subject: Subject) -> bool:
    """Whether none of its threads can go on, at both looks."""
    looks = subject.process.samples
    return len(looks) > 1 and all(look.locked_together for look in looks) and bool(looks[-1].threads)


def _keeps_alive(subject: Subject) -> bool:
    """Whether its main thread waits for an event, as programs do until a signal ends them, and no thread for a lock
    that somebody keeps."""
    frames = subject.process.main_frames
    event = in_condition(frames) and any(in_condition((outer,)) for outer in frames[1:2])
    return event and not any(_lock(thread) for thread in _own(subject.process))


def _place(subject: Subject) -> str:
    """Where a task of a pool waits, else a thread that waits for something else than the end of a thread; else where
    the main thread does."""
    waits = [*_in_pool(subject.process), *(thread for thread in _own(subject.process) if not _joins(thread))]
    return next(filter(None, (user_frame(thread.frames) for thread in waits)), subject.frame)


def _joins(thread: Thread) -> bool:
    return bool(thread.frames) and plain(thread.frames[0].function) in JOINS


def _own(process: Process) -> list[Thread]:
    """Its threads at the last look, without those of our probe."""
    return [thread for thread in process.threads if not ours(thread)]


def _kept(thread: Thread) -> list[str]:
    """The texts of the locks that a thread keeps, without the one that its wait for a notification releases."""
    own = [frame for frame in thread.frames if users(frame)]
    released = source.notified_by(own[0]) if own and in_condition(thread.frames) else ""
    return [lock for frame in own for lock in lock_text.locks_kept(frame) if lock != released]


def _lock(thread: Thread) -> str:
    """The text of the lock for which a thread waits; empty if it waits for something else, as to be notified."""
    frame = inner_frame(thread.frames)
    return lock_text.lock_of(frame) if frame is not None and not in_condition(thread.frames) else ""


def _why(subject: Subject) -> str:
    waits = [_wait(thread) for thread in _own(subject.process) if runs_users(thread)]
    more = f", and {len(waits) - MAX_THREADS} more" if len(waits) > MAX_THREADS else ""
    whole = "every thread of it waits for another one, so that none can go on"
    return f"{whole}: {', '.join(waits[:MAX_THREADS])}{more}" if waits else whole


def _wait(thread: Thread) -> str:
    """For what a thread waits, where, and what it keeps meanwhile."""
    lock, awaits = _lock(thread), ""
    if lock:
        awaits = f" for {lock}"
    elif _joins(thread):
        awaits = " for the end of a thread"
    elif any(frame.file.endswith(_QUEUE) for frame in thread.frames):
        awaits = " for a queue"
    elif in_condition(thread.frames):
        awaits = " to be notified"
    inside = f" inside `with {kept[0]}`" if (kept := _kept(thread)) else ""
    return f"{name(thread)} waits{awaits} at {user_frame(thread.frames)}{inside}"


def _in_two_locks(process: Process) -> list[Thread]:
    """Threads that keep a lock and wait for another one, by the text, which may be arguments of one function."""
    return [thread for thread in _own(process) if _lock(thread) and _kept(thread)]


def _in_pool(process: Process) -> list[Thread]:
    """Threads of pools that wait, in a task, for the result of another task."""
    return [
        thread for thread in _own(process)
        if any(FUTURE.search(frame.file) for frame in thread.frames)
        and any(_POOL.search(frame.file) and plain(frame.function) == "run" for frame in thread.frames)
    ]  # fmt: skip


def _at_barrier(process: Process) -> list[Thread]:
    """Threads that wait at a barrier, in `Barrier._wait`."""
    return [
        thread for thread in _own(process)
        if any(frame.file.endswith("/threading.py") and plain(frame.function) == "_wait" for frame in thread.frames)
    ]  # fmt: skip


def _line(thread: Thread) -> str:
    return user_frame(thread.frames).partition(" in ")[0]


def _next(process: Process, ring: list[str]) -> tuple[str, ...]:
    if not ring and (tasks := _in_pool(process)):
        return (
            f"submit what {_line(tasks[0])} waits for to a pool of its own: a larger pool only fills later",
            Live("py-spy dump --pid PID   # where its threads stand"),
        )
    if not ring and (parties := _at_barrier(process)):
        return (
            f"let every party come to the barrier at {_line(parties[0])}, also after an error: {len(parties)} are "
            "there; its abort() in an `except`, or wait(60), ends the wait of all",
            Live("py-spy dump --pid PID   # where its threads stand"),
        )
    waits = [(thread, frame) for thread in _own(process) if (frame := inner_frame(thread.frames)) is not None]
    keeping = [user_frame(thread.frames) for thread in _in_two_locks(process)]
    steps: list[str] = []
    if places := list(dict.fromkeys(ring or keeping)):
        steps = [IN_ONE_ORDER.format(places=" and ".join(places))] if len(ring or keeping) > 1 else []
    else:
        if any(in_condition(thread.frames) and source.notified_by(frame) for thread, frame in waits):
            steps.append(ASK_FIRST)
        if any(frame.file.endswith(_QUEUE) for thread, _ in waits for frame in thread.frames):
            steps.append(END_MARK)
    return *steps, Live("py-spy dump --pid PID   # where its threads stand")
