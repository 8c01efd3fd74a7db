"""A poll: a process sleeps and looks again, until somebody has made what it looks for.

It waits, and for whom is in no stack: a file of another job, a buffer behind an address, a key of a store. So a poll is
neither progress, whatever its loop does in between, nor a sign that its process has left the job.
"""

from __future__ import annotations

import re

from harness.triage import source, stacks
from harness.triage.evidence import Frame, Process, Sample
from harness.triage.graph.sockets import main_frames
from harness.triage.source import Loop

_STANDARD = re.compile(r"/lib/python3[^/]*/(?!site-packages/|dist-packages/)|^<")
_PACKAGE = re.compile(r"/(?:site|dist)-packages/(\w+)")
_LOADER = re.compile(r"torch/utils/data/dataloader\.py$")
_SLEEPS = re.compile("nanosleep")
# A wait in one of these is for somebody who is known, by a recorder, by Ray or by who started whom.
_ORDERS = ("scheduler", "orders", "ray_idle", "http_server")  # a loop that waits for work polls as well, and is idle
_KNOWN = frozenset({"collective", "p2p", "store", "ray_get", "join", "engine_call", "device", "debugger", "finished"})


def polled_in(process: Process, now: stacks.Doing, before: stacks.Doing) -> tuple[Frame, ...]:
    """The stack of a process that polls from the loop outwards, at the last look; empty where it does not.

    It stands in the loop at both looks, and sleeps at one of them, or waits with a time limit.
    """
    if not process.samples or now.kind in _KNOWN or before.kind in _KNOWN or now.within(*_ORDERS):
        return ()
    looks = process.samples[0], process.samples[-1]
    trails = [main_frames(look.threads) for look in looks]
    if now.kind == before.kind == "http_client" and trails[0] == trails[-1]:
        return ()  # one request, which is not answered
    for look, trail in zip(looks, trails, strict=True):
        if not look.timed and not _SLEEPS.search(look.wchan):
            continue
        loop = _loop(trail, woken=_woke(*looks))
        outer = [(frame.function, frame.file) for frame in loop]
        if outer and all(
            [(frame.function, frame.file) for frame in look_trail[-len(outer) :]] == outer for look_trail in trails
        ):
            return trails[-1][-len(outer) :]
    return ()


def _loop(trail: tuple[Frame, ...], *, woken: bool) -> tuple[Frame, ...]:
    """The frames from the loop outwards in which a thread sleeps, and after which it goes on."""
    for at, frame in enumerate(trail):
        if _STANDARD.search(frame.file):
            continue  # a queue's or a selector's own loop ends with its time limit
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
    """Whether what a loop looks for comes from processes that its own process started: those of a DataLoader."""
    return any(_LOADER.search(frame.file) for frame in loop[:1])


def woke(process: Process) -> bool:
    """Whether the main thread of a process woke up between the looks."""
    return bool(process.samples) and _woke(process.samples[0], process.samples[-1])


def _woke(first: Sample, last: Sample) -> bool:
    if first.main_switches is None or last.main_switches is None:
        return False
    return last.main_switches > first.main_switches
