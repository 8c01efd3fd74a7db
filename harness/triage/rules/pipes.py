"""Rules about a pipe that is full because its one reader waits for its writer (K6).

The kernel says that a thread of the writer waits in `pipe_write`, and who else has the pipe open to read. A reader that
only reads slowly is no part of this: it wakes up, so that its wait is not the same at both looks.
"""

from __future__ import annotations

import re

from harness.triage.graph import Subject
from harness.triage.places import plain, users
from harness.triage.rules.ruling import Case, Ruling

_FEEDER = re.compile(r"multiprocessing/queues\.py$")


def undrained(case: Case) -> Ruling | None:
    """K6: a process waits for the end or an answer of its child, which waits until that same process reads a full
    pipe."""
    for child in case.live():
        its = child.process
        parent = case.graph.subjects.get(f"{its.host}:{its.reader}") if its is not None and its.reader else None
        if its is None or parent is None or child.progress or parent.progress or not _started(case, parent, child):
            continue
        if (
            parent.key in case.excused
            or parent.ended
            or _reads_beside(parent)
            or not (waits := _how_it_waits(parent, child))
        ):
            continue
        stream = its.samples[-1].writes_to
        why = f"{waits} its child {its.pid}, whose {_unread(stream, child)}"
        at = f", at {child.frame}" if child.frame else ""
        return Ruling(
            "HUNG",
            f"{case.names([parent.key])} {why}",
            "K6",
            {parent.key: why},
            place=parent.frame or parent.doing.op,
            evidence=(f"{child.label} writes into {its.samples[-1].writing}, which only {parent.label} can read{at}",),
            next=_steps(stream, parent),
        )
    return None


def _started(case: Case, parent: Subject, child: Subject) -> bool:
    """Whether a process started another one, itself or by a shell."""
    process = child.process
    while process is not None and parent.process is not None:
        if process.ppid == parent.process.pid:
            return True
        above = case.graph.subjects.get(f"{process.host}:{process.ppid}")
        process = above.process if above is not None and above.role == "shell" else None
    return False


def _unread(stream: str, child: Subject) -> str:
    return f"full {stream or ('queue' if _feeds(child) else 'pipe')} it does not read"


def _steps(stream: str, parent: Subject) -> tuple[str, ...]:
    if stream and parent.doing.kind == "join":
        return ("call Popen.communicate() in place of wait(): it reads both streams",)
    if stream:
        return (
            f"give it another {stream}: subprocess.Popen(..., {stream}=subprocess.DEVNULL), or an open file",
            f"or read {stream} in a thread of its own, as Popen.communicate() does",
        )
    return ("read the queue before join(): a child ends only when its queue is empty",)


def _how_it_waits(parent: Subject, child: Subject) -> str:
    """How the reader of a full pipe waits for its writer, as a verb; empty if it may still read."""
    mine, its = parent.process, child.process
    if mine is None or its is None or len(mine.samples) < 2:
        return ""
    if parent.doing.kind == parent.before.kind == "join" and not any(look.timed for look in mine.samples):
        return "joins"
    full = its.samples[-1].writing
    if mine.writer == its.pid and full.startswith("pipe:") and mine.samples[-1].reading != full:
        return "waits for an answer of"
    # Both write: each pipe is full, and each has the other process as its only reader.
    return "writes to" if mine.reader == its.pid and fills(parent) else ""


def _reads_beside(subject: Subject) -> bool:
    """Whether a thread other than the main one runs user code, which may read the pipe."""
    threads = subject.process.samples[-1].threads if subject.process and subject.process.samples else ()
    return any(users(frame) for thread in threads if not thread.main for frame in thread.frames)


def fills(subject: Subject) -> bool:
    """Whether one of its threads waits to write to a full pipe or socket at both looks: somebody else has to read."""
    looks = subject.process.samples if subject.process else ()
    return len(looks) > 1 and all(look.writing or _feeds_at(subject, at) for at, look in enumerate(looks))


def _feeds(subject: Subject) -> bool:
    """Whether the thread that empties a queue of multiprocessing waits to write at the last look."""
    return _feeds_at(subject, -1)


def _feeds_at(subject: Subject, at: int) -> bool:
    threads = subject.process.samples[at].threads if subject.process else ()
    return any(
        "pipe_write" in thread.wchan
        and any(_FEEDER.search(frame.file) and plain(frame.function) == "_feed" for frame in thread.frames)
        for thread in threads
    )
