"""Processes that poll: they sleep and look again until another process has made what they look for.

A poll is a wait, but no stack shows for whom: it may be for a file of another job, a buffer behind an address, or a key
of a store. So a poll is not progress, whatever its loop does in between. Nor does it show that the process has left the
job.
"""

from __future__ import annotations

import re

from harness.triage import source, stacks
from harness.triage.evidence import Frame, Process
from harness.triage.graph.motion import wake_ups
from harness.triage.graph.sockets import SOCKET_FILE
from harness.triage.places import plain
from harness.triage.source import Loop

_STANDARD = re.compile(r"/lib/python3[^/]*/(?!site-packages/|dist-packages/)|^<")
_PACKAGE = re.compile(r"/(?:site|dist)-packages/(\w+)")
_LOADER = re.compile(r"torch/utils/data/dataloader\.py$")
_SLEEPS = re.compile("nanosleep")
# A recorder, Ray or the parent of a process says whom a wait of these kinds is for.
_ORDERS = ("scheduler", "orders", "ray_idle", "http_server")  # a loop that waits for requests polls too, but is idle
_KNOWN = frozenset({"collective", "p2p", "store", "ray_get", "join", "engine_call", "device", "debugger", "finished"})


def polled_in(process: Process, now: stacks.Doing, before: stacks.Doing) -> tuple[Frame, ...]:
    """The stack of a process that polls, from the loop outwards, at the last look; empty if it does not poll.

    It polls if it stands in the loop at the first and the last look, and at one look sleeps or waits with a time limit;
    on a busy host no look may meet it in a short sleep that its loop is seen to make. A loop that does nothing but ask
    its condition polls as well, though it keeps a processor busy.
    """
    if not process.samples or now.kind in _KNOWN or before.kind in _KNOWN or now.within(*_ORDERS):
        return ()
    first, last = process.first_look.main_frames, process.main_frames
    reads = now.kind == before.kind == "http_client" or any(SOCKET_FILE.search(frame.file) for frame in last[:1])
    if reads and first == last:
        return ()  # one request without an answer, or with one that comes in pieces
    for trail in (first, last):
        loop = _loop(trail, woken=woke(process))
        # The frames from the loop outwards must be the same at both looks.
        if loop and _sleeps_or_spins(process, loop[0]) and _ends_as(first, loop) and _ends_as(last, loop):
            return last[-len(loop) :]
    return ()


def _sleeps_or_spins(process: Process, frame: Frame) -> bool:
    """Whether a process in the loop around this frame was met in a sleep or a wait with a limit, or is seen by the text
    to make one, or does nothing but ask a condition."""
    if any(look.timed or _SLEEPS.search(look.wchan) for look in process.samples):
        return True
    return (woke(process) and source.sleeps_within(frame)) or (source.spins(frame) and not _stands(process))


def _stands(process: Process) -> bool:
    """Whether it slept in the kernel at every look and was not woken in between: a condition such as `os.read(pipe)` is
    asked once, and has no answer yet."""
    return all(look.wchan for look in process.samples) and not woke(process)


def _ends_as(trail: tuple[Frame, ...], loop: tuple[Frame, ...]) -> bool:
    """Whether the outermost frames of a stack are those of the loop, at whatever lines."""
    outer = trail[-len(loop) :]
    return [(frame.function, frame.file) for frame in outer] == [(frame.function, frame.file) for frame in loop]


def _loop(trail: tuple[Frame, ...], *, woken: bool) -> tuple[Frame, ...]:
    """The frames from the loop outwards in which a thread sleeps and then continues; empty if it is in no such loop, or
    in one whose rounds train."""
    for at, frame in enumerate(trail):
        if _STANDARD.search(frame.file):
            continue  # the loop inside a queue or a selector ends with its time limit
        if source.trains(frame):
            return ()
        loop = source.loop_around(frame)
        if loop in (Loop.UNTIL, Loop.ROUNDS) or (loop is Loop.UNKNOWN and woken):
            return trail[at:]
        if loop is not Loop.NONE:
            return ()
    return ()


def place(loop: tuple[Frame, ...]) -> str:
    """Where a poll is in the user's code, and of which package its loop is where it is none of the user's."""
    mine = stacks.user_frame(loop)
    package = _PACKAGE.search(loop[0].file)
    if not mine or package is None:
        return mine or stacks.describe(loop[0])
    return f"{mine} ({package[1]})"


def from_children(loop: tuple[Frame, ...]) -> bool:
    """Whether a loop looks for something that the process's own children make: the workers of a DataLoader."""
    return any(_LOADER.search(frame.file) for frame in loop[:1])


def from_workers(process: Process) -> bool:
    """Whether a process asks the workers of its DataLoader again and again for a batch, however long that takes: it
    asks in a loop only where it has no time limit."""
    frames = [frame for look in process.samples for frame in look.main_frames if _LOADER.search(frame.file)]
    asking = [frame for frame in frames if plain(frame.function) == "_get_data"]
    return any(source.loop_around(frame) in (Loop.UNTIL, Loop.ENDLESS) for frame in asking)


def woke(process: Process) -> bool:
    """Whether the main thread of a process woke up between the looks."""
    return wake_ups(process.first_look, process.last_look) > 0
