"""Rules about a pipe that is full: its one reader waits for its writer (K6), or its readers do something else.

The kernel says that a thread of the writer waits in `pipe_write`, and who else has the pipe open to read. A reader that
only reads slowly is no part of this: it wakes up, so that its wait is not the same at both looks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from harness.triage import source
from harness.triage.evidence import PipeReader, Process, Thread
from harness.triage.graph import Subject
from harness.triage.places import plain, runs_users, users
from harness.triage.rules.ruling import MOST_NAMED, Case, Live, Ruling, brief
from reports.text import agreeing, first_of

WRITES_TO = "writes to"
_FEEDER = re.compile(r"multiprocessing/queues\.py$")


def undrained(case: Case) -> Ruling | None:
    """K6: a process waits for the end or an answer of its child, which waits until that same process reads a full
    pipe."""
    for child in case.live():
        its = child.process
        parent = case.graph.subjects.get(f"{its.host}:{its.reader}") if its.reader else None
        if parent is None or child.progress or parent.progress or not _started(case, parent, child):
            continue
        if (
            parent.key in case.excused
            or parent.ended
            or runs_beside(parent)
            or not (waits := _how_it_waits(parent, child))
        ):
            continue
        stream = its.last_look.writes_to
        if waits == WRITES_TO and not stream:
            return _each_other(parent, child)
        why = f"{waits} its child {its.pid}, whose {_unread(stream, child)}"
        at = f", at {child.frame}" if child.frame else ""
        return Ruling(
            "HUNG",
            f"{case.names([parent.key])} {why}",
            "K6",
            {parent.key: why},
            place=parent.frame or parent.doing.op,
            evidence=(f"{child.label} writes into {its.last_look.writing}, which only {parent.label} can read{at}",),
            next=_steps(stream, parent),
        )
    return None


def _each_other(parent: Subject, child: Subject) -> Ruling:
    """K6: two processes write to each other, and neither reads. Nothing says which of them has to read first."""
    both = (parent, child)
    places = tuple(f"{each.label} writes at {each.frame or 'a place without a Python frame'}" for each in both)
    return Ruling(
        "HUNG",
        f"{parent.label} and {child.label} write to each other, and neither reads: both ways are full",
        "K6",
        cycle=tuple(each.key for each in both),
        place=parent.frame or parent.doing.op,
        evidence=places,
        next=("let one of the two read before it writes, or read in a thread of its own",),
    )


def _started(case: Case, parent: Subject, child: Subject) -> bool:
    """Whether a process started another one, itself or by a shell."""
    process = child.process
    while True:
        if process.ppid == parent.process.pid:
            return True
        above = case.graph.subjects.get(f"{process.host}:{process.ppid}")
        if above is None or above.role != "shell":
            return False
        process = above.process


def unread(case: Case, writers: Sequence[Subject]) -> Ruling:
    """INSUFFICIENT: processes write to a full pipe or socket. Names who can read it and what these do, which may read
    later."""
    who, write = case.names(writer.key for writer in writers), agreeing(len(writers), "writes", "write")
    pairs = [(writer, reader) for writer in writers for reader in _idle_readers(writer)]
    names = list(dict.fromkeys(_reader_name(case, *pair) for pair in pairs))
    which = f"which {first_of(names, MOST_NAMED)} can read" if names else "and nothing says who reads it"
    pids = ",".join(dict.fromkeys(str(reader.pid) for _, reader in pairs))
    return Ruling(
        "INSUFFICIENT",
        f"{who} {write} into a pipe or socket that is full, {which}",
        evidence=tuple(
            f"{_reader_name(case, writer, reader)} can read what {writer.label} writes; "
            f"{_reader_state(case, writer, reader)}"
            for writer, reader in pairs
        ),
        missing=tuple(f"when {name} reads" for name in names)
        or tuple(f"who reads what {writer.label} writes" for writer in writers),
        place=case.waited_in(writer.key for writer in writers) or writers[0].frame,
        next=(
            Live(f"ps -o pid,ppid,etime,args -p {pids}   # who can read it, and since when" if pids else ""),
            "read the pipe while its writer runs, and a queue before the process that fills it is joined",
        ),
    )


def _idle_readers(writer: Subject) -> list[PipeReader]:
    """Who can read what a process writes, without those that wait for the end of another of them: a shell has the pipe
    of the program that it runs."""
    readers = writer.process.readers
    pids = {reader.pid for reader in readers}
    return [reader for reader in readers if not ("do_wait" in reader.wchan and pids & set(reader.children))]


def _reader_name(case: Case, writer: Subject, reader: PipeReader) -> str:
    subject = case.graph.subjects.get(f"{writer.process.host}:{reader.pid}")
    return subject.label if subject is not None else f"process {reader.pid}"


def _reader_state(case: Case, writer: Subject, reader: PipeReader) -> str:
    """What a reader does instead, and which processes wait for its end with the pipe open, to read it then."""
    process = writer.process
    behind = [str(other.pid) for other in process.readers if reader.pid in other.children]
    subject = case.graph.subjects.get(f"{process.host}:{reader.pid}")
    does = "it does something else"
    if reader.sleeps_s is not None:
        does = f"it sleeps, at most {reader.sleeps_s:.0f} s more"
    elif "do_wait" in reader.wchan and reader.children:
        does = f"it waits for the end of process {', '.join(map(str, reader.children[:MOST_NAMED]))}"
    elif subject is not None and subject.frame:
        does = f"it stands at {subject.frame}"
    then = f", and process {', '.join(behind)}, which waits for its end, may read then" if behind else ""
    return f"{does} ({brief(reader.command)}){then}"


def _unread(stream: str, child: Subject) -> str:
    return f"full {stream or ('queue' if _feeds(child.process.threads) else 'pipe')} it does not read"


def _steps(stream: str, parent: Subject) -> tuple[str, ...]:
    if stream and parent.doing.kind == "join":
        return ("call Popen.communicate() in place of wait(): it reads both streams",)
    if stream:
        return (
            f"read {stream} while it runs, in a thread of its own: Popen.communicate(ITS_INPUT) does",
            f"or, if nobody reads it, give it another {stream}: subprocess.Popen(..., {stream}=subprocess.DEVNULL)",
        )
    return ("read the queue before join(): a child ends only when its queue is empty",)


def _how_it_waits(parent: Subject, child: Subject) -> str:
    """How the reader of a full pipe waits for its writer, as a verb; empty if it may still read."""
    mine, its = parent.process, child.process
    if len(mine.samples) < 2:
        return ""
    limited = any(look.timed for look in mine.samples) and not _begins_again(mine)
    if parent.doing.kind == parent.before.kind == "join" and not limited:
        return "joins"
    full = its.last_look.writing
    if mine.writer == its.pid and full.startswith("pipe:") and mine.last_look.reading != full:
        return "waits for an answer of"
    # Both write: each pipe is full, and each has the other process as its only reader.
    return WRITES_TO if mine.reader == its.pid and fills(parent) else ""


def _begins_again(process: Process) -> bool:
    """Whether its main thread waits with a limit in a loop that does nothing else, by the source text: for ever."""
    frames = process.main_frames
    at = next((at for at, frame in enumerate(frames) if users(frame)), None)
    if at is None:
        return False
    raises = any(frame.file.endswith("/subprocess.py") for frame in frames[:at])
    return source.waits_again(frames[at], raises=raises)


def runs_beside(subject: Subject) -> bool:
    """Whether a thread other than the main one runs user code, which may read the pipe, or release a lock."""
    threads = subject.process.threads
    return any(runs_users(thread) for thread in threads if not thread.main)


def fills(subject: Subject) -> bool:
    """Whether one of its threads waits to write to a full pipe or socket at both looks: somebody else has to read."""
    looks = subject.process.samples
    return len(looks) > 1 and all(look.writing or _feeds(look.threads) for look in looks)


def _feeds(threads: Iterable[Thread]) -> bool:
    """Whether the thread that empties a queue of multiprocessing waits to write."""
    return any(
        "pipe_write" in thread.wchan
        and any(_FEEDER.search(frame.file) and plain(frame.function) == "_feed" for frame in thread.frames)
        for thread in threads
    )
