"""What keeps a rank from its peers where its main thread waits inside its process: a lock, a result, an item, a thread.

The rank itself is known; these are the words about it. Who keeps a lock is read from the stacks and the source text:
whoever stands in a `with` of it. A name that means one lock throughout its file is a fact. Another one may mean two
locks: its keeper only seems to be one. Of a lock of multiprocessing the kernel says which processes can release it.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from harness.triage import lock_text, queue_text, source
from harness.triage.evidence import Frame, Process, Thread
from harness.triage.graph import Subject
from harness.triage.places import FUTURE, inner_frame, plain, runs_users, users
from harness.triage.rules.alive import bringers_over, in_condition
from harness.triage.rules.alone import END_MARK, GIVE_BACK
from harness.triage.rules.lock_rings import TAKE_ONCE, proven
from harness.triage.rules.ruling import Case, Live
from harness.triage.rules.shared_locks import RELEASED_AT_END
from harness.triage.rules.threads import keepers, name
from harness.triage.stacks import JOINS, describe, ours, posture
from reports.text import counted

MOST_BESIDE = 2  # threads whose places a verdict names
_STAND = Live("py-spy dump --pid PID   # where its threads stand")
_THREADS = re.compile(r"/threading\.py$")
_SHARED = re.compile(r"/multiprocessing/synchronize\.py$")
_QUEUE = re.compile(r"/queue\.py$")
_POOL = re.compile(r"/concurrent/futures/thread\.py$")


@dataclass(frozen=True)
class Withheld:
    """`words`: what the rank waits for, where, and who keeps it, as the verb of a sentence. `place`: where it waits."""

    words: str
    place: str
    fix: tuple[str, ...]


@dataclass(frozen=True)
class _Worker:
    """A thread that brings what the main thread waits for. `waits`: that wait, as the verb of a sentence."""

    thread: Thread
    waits: str
    who: str  # the thread, in words


def withheld(case: Case, subject: Subject) -> Withheld | None:
    """What keeps a rank back, where its main thread waits for something of its own process that shows; else None."""
    process = subject.process
    frames = process.main_frames
    waiting = inner_frame(frames)
    if waiting is None or not _stands(process) or proven(process):
        return None
    calls = frames[: frames.index(waiting)]
    if _takes_lock(calls, process.last_look.wchan) and (lock := _lock(waiting)):
        if process.last_look.in_shared_lock:
            return _behind_shared_lock(case, subject, waiting, lock)
        return _behind_lock(subject, waiting, lock)
    if any(_QUEUE.search(frame.file) for frame in calls) and (lost := _unfilled(process, waiting)):
        return lost
    if (worker := _worker(process, calls, waiting)) is not None:
        return _behind_worker(process, waiting, worker)
    return _unnotified(process, waiting) if in_condition(calls) else None


def unanswered(process: Process, handler: Thread) -> Withheld | None:
    """What a thread of a server waits for while it handles a request, where nothing is left that brings it; else
    None."""
    waiting = inner_frame(handler.frames)
    bringers = bringers_over(process, waiting) if waiting is not None else {}
    if waiting is None or len(bringers) != 1:
        return None
    [(function, line)] = bringers.items()
    brings = f"{function} ({os.path.basename(waiting.file)}:{line})"
    return Withheld(
        f"does not answer: at {_at(waiting)} it waits for what {brings} brings; no thread runs it",
        describe(waiting),
        (
            f"see why the thread of {function} ended: an error that it caught, or the end of its loop",
            f"let it go on after an error, and hand the error to whoever waits at {_at(waiting)}",
        ),
    )


def _stands(process: Process) -> bool:
    """Whether its main thread has stood at one place at every look, as the stack of each says."""
    stacks = {look.main_frames for look in process.samples}
    return len(process.samples) > 1 and len(stacks) == 1


def _takes_lock(calls: Sequence[Frame], wchan: str) -> bool:
    """Whether a line waits in C for a lock, or in the standard library's `__enter__` or `acquire` of one."""
    inside = all(_THREADS.search(frame.file) or _SHARED.search(frame.file) for frame in calls)
    return inside and not in_condition(calls) and not any(_is_join(frame) for frame in calls) and "futex" in wchan


def _is_join(frame: Frame) -> bool:
    return plain(frame.function) in JOINS


def _lock(frame: Frame) -> str:
    """The name of the lock that a line takes; empty where the text does not say one."""
    lock = lock_text.lock_of(frame)
    return "" if lock.endswith(")") else lock


def _at(frame: Frame) -> str:
    return f"{os.path.basename(frame.file)}:{frame.line}"


def _in_get(queue: str, frame: Frame) -> str:
    return f"waits in {queue}.get() at {_at(frame)}"


def _behind_lock(subject: Subject, waiting: Frame, lock: str) -> Withheld:
    """Behind a lock of threads."""
    process = subject.process
    waits = f"waits at {_at(waiting)} for {lock}"
    seems = "keeps" if lock in lock_text.sole_locks(waiting.file) else "seems to keep"
    kept = keepers(process.threads, waiting, lock)
    beside = [(thread, frame) for thread, frame in kept if not thread.leads]
    if len(beside) == 1:
        thread, frame = beside[0]
        who, at = f"its {name(thread)}", _at(frame)
        out = f"take what waits at {at} out of `with {lock}`, or give it a time limit: {_at(waiting)} needs that lock"
        fix = (out,) if seems == "keeps" else (f"if both take one lock, {out}", GIVE_BACK)
        return Withheld(f"{waits}, which {who} {seems} at {at}", describe(waiting), fix)
    if kept and not beside:
        return Withheld(
            f"{waits}, which it {seems} itself since {_at(kept[0][1])}",
            describe(waiting),
            (TAKE_ONCE.format(lock=lock),),
        )
    nobody = f"{counted(len(beside), 'thread')} stand in a `with` of" if beside else "no thread is seen to keep"
    words = f"{waits}: {nobody} it" if beside else f"{waits}, which {nobody}"
    return Withheld(words, describe(waiting), (GIVE_BACK, _STAND))


def _behind_shared_lock(case: Case, subject: Subject, waiting: Frame, lock: str) -> Withheld | None:
    """Behind a lock of multiprocessing: who stands in a `with` of it, or that nobody is left who could release it."""
    process, shared = subject.process, subject.process.shared_lock
    if shared is None:
        return None
    waits, sharers = f"waits at {_at(waiting)} for {lock}", set(shared.sharers) - {process.pid}
    others = [each for each in case.live() if each.process.host == process.host and each.process.pid in sharers]
    kept = [(each, frame) for each in others for _, frame in keepers(each.process.threads, waiting, lock)]
    if len(kept) == 1:
        keeper, frame = kept[0]
        return Withheld(
            f"{waits}, which {keeper.label} {'keeps' if len(sharers) == 1 else 'seems to keep'} at {_at(frame)}",
            describe(waiting),
            (f"take what waits at {_at(frame)} out of `with {lock}`: {_at(waiting)} of {subject.label} needs it",),
        )
    if any(frame != waiting and lock_text.keeps_lock(frame, lock) for frame in process.main_frames):
        return Withheld(
            f"{waits}, a multiprocessing lock that it seems to keep itself",
            describe(waiting),
            (f"take {lock} once, or make it a multiprocessing.RLock",),
        )
    beside = [thread for thread in process.threads if not (thread.leads or ours(thread)) and runs_users(thread)]
    if sharers or beside:
        return None
    killed = [each for each in case.evidence.processes
              if each.is_child_of(process) and each.exit_code == -signal.SIGKILL]  # fmt: skip
    child = f"; its child {killed[0].pid} was killed" if len(killed) == 1 else ""
    return Withheld(
        f"{waits}, a multiprocessing lock that nobody can release{child}",
        describe(waiting),
        RELEASED_AT_END,
    )


def _unfilled(process: Process, waiting: Frame) -> Withheld | None:
    """Before a queue whose only fillers have ended, by the source text."""
    queue = queue_text.awaited_queue(waiting)
    waits = _in_get(queue, waiting)
    for lost in process.lost_threads:
        if queue in source.filled_alone(waiting.file, lost.name):
            error = lost.error.partition(":")[0].split()[-1:]
            return Withheld(
                f"{waits}, which thread {lost.name} filled until it died of {''.join(error) or 'an error'}",
                describe(waiting),
                (
                    f"mend what ended thread {lost.name}: {lost.error}",
                    f"let it catch its errors and put an end mark or the error into {queue}",
                ),
            )
    fillers = queue_text.fillers(waiting.file, queue)
    threads = [thread for look in process.samples for thread in look.threads]
    if not fillers or any(_fills(thread, waiting.file, queue) for thread in threads):
        return None
    function, line = next(iter(fillers.items()))
    which = f"{function} ({os.path.basename(waiting.file)}:{line})" if len(fillers) == 1 else " and ".join(fillers)
    runs = "runs it" if len(fillers) == 1 else "runs them"
    return Withheld(f"{waits}, which {which} fills; no thread {runs}", describe(waiting), (END_MARK,))


def _unnotified(process: Process, waiting: Frame) -> Withheld:
    """In a wait of `threading` (an event, a condition, a barrier, the join of a queue) that another thread has to end:
    the threads that ended by an error, and where those stand that run the program's code."""
    call = queue_text.waiting_call(waiting)
    waits = f"waits at {_at(waiting)}{f' in {call}()' if call else ''}"
    if process.lost_threads:
        lost = process.lost_threads[0]
        return Withheld(
            f"{waits}; its thread {lost.name} has died of an error",
            describe(waiting),
            (f"mend what ended thread {lost.name}: {lost.error}", f"give the wait at {_at(waiting)} a time limit"),
        )
    beside = [thread for thread in process.threads if not (thread.leads or ours(thread)) and runs_users(thread)]
    stand = [(thread, frame) for thread in beside if (frame := inner_frame(thread.frames)) is not None]
    if not stand:
        return Withheld(
            f"{waits}; no other thread runs code of the program",
            describe(waiting),
            (f"see which thread had to end the wait at {_at(waiting)}, and why it has ended or was not started",),
        )
    where = " and ".join(f"{name(thread)} {posture(thread)} at {_at(frame)}" for thread, frame in stand[:MOST_BESIDE])
    return Withheld(
        f"{waits}; its {where}",
        describe(waiting),
        (f"see why {_at(stand[0][1])} does not go on: only a thread beside ends the wait at {_at(waiting)}",),
    )


def _fills(thread: Thread, file: str, queue: str) -> bool:
    """Whether a thread stands in a function of a file that fills a queue of it."""
    fillers = queue_text.fillers(file, queue)
    return any(frame.file == file and plain(frame.function) in fillers for frame in thread.frames)


def _runs_task(frame: Frame) -> bool:
    """Whether a thread of a pool works on a task in this frame."""
    return bool(_POOL.search(frame.file)) and plain(frame.function) == "run"


def _worker(process: Process, calls: Sequence[Frame], waiting: Frame) -> _Worker | None:
    """The one thread that brings what the main thread waits for; None where several may."""
    beside = [thread for thread in process.threads if not (thread.leads or ours(thread)) and runs_users(thread)]
    if any(FUTURE.search(frame.file) for frame in calls):
        busy = [thread for thread in beside if any(map(_runs_task, thread.frames))]
        return _Worker(busy[0], f"waits at {_at(waiting)} for a task", "that task") if len(busy) == 1 else None
    if any(_THREADS.search(frame.file) and _is_join(frame) for frame in calls):
        if len(beside) != 1:
            return None
        return _Worker(beside[0], f"joins {name(beside[0])} at {_at(waiting)}", "that thread")
    if any(_QUEUE.search(frame.file) for frame in calls):
        queue = queue_text.awaited_queue(waiting)
        filling = [thread for thread in beside if _fills(thread, waiting.file, queue)]
        return _Worker(filling[0], _in_get(queue, waiting), f"its {name(filling[0])}") if len(filling) == 1 else None
    return None


def _behind_worker(process: Process, waiting: Frame, worker: _Worker) -> Withheld | None:
    """Behind a thread of its own, which may need a lock that the main thread keeps."""
    at = inner_frame(worker.thread.frames)
    if at is None:
        return None
    waits, where = worker.waits, _at(at)
    called = worker.thread.frames[: worker.thread.frames.index(at)]
    lock = _lock(at) if _takes_lock(called, worker.thread.wchan or "futex") else ""
    if not lock:
        return Withheld(
            f"{waits}; {worker.who} {posture(worker.thread)} at {where}",
            describe(waiting),
            (f"find what {where} waits for: nothing else ends the wait at {_at(waiting)}; give it a time limit",),
        )
    main = [frame for frame in process.main_frames if users(frame) and frame.file == at.file]
    # The main thread takes no lock where it waits, so it is past the `with` of a line that has both.
    if any(lock_text.keeps_lock(frame, lock) or lock_text.lock_of(frame) == lock for frame in main):
        return Withheld(
            f"{waits} and keeps {lock}, which {worker.who} needs at {where}",
            describe(waiting),
            (f"wait for it outside `with {lock}`, or let {where} run without that lock",),
        )
    kept = [pair for pair in keepers(process.threads, at, lock) if pair[0] is not worker.thread]
    by = f", which its {name(kept[0][0])} keeps at {_at(kept[0][1])}" if len(kept) == 1 else ""
    return Withheld(
        f"{waits}; {worker.who} waits for {lock} at {where}{by}",
        describe(waiting),
        (GIVE_BACK, _STAND),
    )
