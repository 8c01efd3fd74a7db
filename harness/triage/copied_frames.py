"""The frames that a child of multiprocessing has from its parent: a fork copies its stack, and they never run again."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace

from harness.triage import source
from harness.triage.evidence import Frame, Process, Thread
from harness.triage.places import users
from harness.triage.stacks import describe, user_frame


def since_fork(threads: Iterable[Thread]) -> tuple[Thread, ...]:
    """Threads of a child without the frames of its parent."""
    return tuple(
        replace(thread, frames=thread.frames[:at]) if (at := _fork(thread.frames)) else thread for thread in threads
    )


def forked_at(threads: Iterable[Thread]) -> str:
    """The user's line of its parent that started a child; empty where no stack shows it."""
    copied = (thread.frames[at:] for thread in threads if (at := _fork(thread.frames)))
    return next(map(user_frame, copied), "")


def fork_place(process: Process) -> str:
    """The line at which a process was forked: as its stack had it, else the only call of `os.fork()` before its lines,
    in the functions that it still stands in. Empty where neither shows it."""
    if process.forked_at or not process.forked:
        return process.forked_at
    frames = [frame for frame in process.main_frames if users(frame)]
    places = [replace(frame, line=line) for frame in frames for line in source.fork_lines(frame)]
    return describe(places[0]) if len(places) == 1 else ""


def own_frames(process: Process) -> Process:
    """The process without frames of its parent, of which the line that forked it is kept: evidence of before has
    them."""
    if not any(_fork(thread.frames) for look in process.samples for thread in look.threads):
        return process
    looks = tuple(replace(look, threads=since_fork(look.threads)) for look in process.samples)
    return replace(process, samples=looks, forked_at=process.forked_at or forked_at(process.threads))


def _fork(frames: Sequence[Frame]) -> int:
    """The place of the innermost frame that a child has from its parent; 0 if it has none."""
    for at, (frame, caller) in enumerate(itertools.pairwise(frames), 1):
        if caller.file.endswith("/multiprocessing/popen_fork.py") and frame.file.endswith(
            "/multiprocessing/process.py"
        ):
            return at
    return 0
