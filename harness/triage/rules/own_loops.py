"""Rules about a thread that runs an event loop and waits, in a call, for a result that only this loop can make (K6).

The stack shows that the thread runs a loop and waits in `Future.result`. The source text shows which loop makes the
result. Where it asks for the running loop in the same function, that is the thread's own. Where it names a loop that
the file made once, and no other thread runs a loop, nothing but a thread that still has to start it could make it.
"""

from __future__ import annotations

import re

from harness.triage.evidence import Frame, Thread
from harness.triage.graph import Subject
from harness.triage.graph.motion import spent_s
from harness.triage.loop_text import Loop, awaited_loop
from harness.triage.places import FUTURE, plain, users
from harness.triage.rules.ruling import Case, Ruling
from harness.triage.rules.threads import name
from harness.triage.stacks import describe

_RUNS = re.compile(r"/asyncio/|/uvloop/")
_WAITS = re.compile(r"/concurrent/futures/_base\.py$|/threading\.py$")


def awaited(case: Case) -> Ruling | None:
    """K6: a thread waits for a result of the loop that it runs itself, by the text of one function."""
    return _ruling(case, Loop.OWN)


def unserved(case: Case) -> Ruling | None:
    """K6: a thread waits for a result of a loop that no other thread runs, so that it is its own or nobody's."""
    return _ruling(case, Loop.MADE_HERE)


def _ruling(case: Case, loop: Loop) -> Ruling | None:
    for subject in case.suspects():
        if (stands := _stands(subject, loop)) is not None and _matters(case, subject, stands[0]):
            thread, frame = stands
            at = describe(frame)
            whose = "the same thread runs that loop" if loop is Loop.OWN else "no other thread runs that loop"
            return Ruling(
                "HUNG",
                f"{subject.label} waits at {at.partition(' in ')[0]} for its own event loop, which that wait holds up",
                "K6",
                {
                    subject.key: f"{name(thread)} runs an event loop and waits at {at} for what it gave to one; "
                    f"{whose}, so that nothing can make it"
                },
                place=at,
                frames={subject.key: at},
                next=(
                    f"await it at {at}: `await asyncio.wrap_future(future)` in place of `future.result()`, or await "
                    "the coroutine itself",
                    "or call what waits in another thread: `await asyncio.to_thread(function)`",
                ),
            )
    return None


def _stands(subject: Subject, loop: Loop) -> tuple[Thread, Frame] | None:
    """The thread that waits so at every look without any work, and its line; None without one."""
    process = subject.process
    looks = process.samples
    if len(looks) < 2 or subject.progress:
        return None
    for thread in looks[-1].threads:
        frame = _waits_in_loop(thread)
        if frame is None or awaited_loop(frame) is not loop or thread.active or spent_s(process, thread):
            continue
        if loop is Loop.MADE_HERE and any(map(_runs, (each for each in looks[-1].threads if each is not thread))):
            continue
        before = (each for each in looks[0].threads if (each.tid, each.name) == (thread.tid, thread.name))
        if any(each.frames == thread.frames for each in before):
            return thread, frame
    return None


def _waits_in_loop(thread: Thread) -> Frame | None:
    """The user's line at which a thread that runs an event loop waits for a future of threads; None if it does not."""
    at = next((at for at, frame in enumerate(thread.frames) if users(frame)), None)
    if at is None or not _runs(thread):
        return None
    inner, outer = thread.frames[:at], thread.frames[at + 1 :]
    in_future = any(FUTURE.search(frame.file) and plain(frame.function) in ("result", "exception") for frame in inner)
    waits = in_future and all(_WAITS.search(frame.file) for frame in inner)
    return thread.frames[at] if waits and any(_RUNS.search(frame.file) for frame in outer) else None


def _runs(thread: Thread) -> bool:
    return any(_RUNS.search(frame.file) for frame in thread.frames)


def _matters(case: Case, subject: Subject, thread: Thread) -> bool:
    """Whether the main thread stands there, or waits without a limit for another thread; or somebody waits for the
    process."""
    if thread.leads or subject.key in case.awaited():
        return True
    return subject.doing.kind in ("lock", "join") and not any(look.timed for look in subject.process.samples)
