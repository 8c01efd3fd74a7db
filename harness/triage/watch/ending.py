"""Ends a job and reports who is left: SIGTERM, a grace period, SIGKILL, and a wait with a limit."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Mapping

from harness.triage.watch.observe import Stat
from reports.text import first_of

GRACE_S = 3.0  # seconds between SIGTERM and SIGKILL: torchrun passes SIGTERM on and waits that long for its workers
KILL_S = 10.0  # seconds after SIGKILL: a process that frees its memory longer or sleeps in the kernel is left behind
LOOK_S = 0.05  # seconds between two checks whether the processes have ended


def end(
    members: Callable[[], Mapping[int, Stat]],
    *,
    grace_s: float = GRACE_S,
    kill_s: float = KILL_S,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    send: Callable[[int, int], None] = os.kill,
) -> list[Stat]:
    """End every process of `members()`, which is called again and again so that no fork escapes.

    Returns the processes that live after `grace_s` and `kill_s`. A member is identified by pid and start time: a
    process that reuses the pid of an ended member gets no signal.
    """
    living: dict[int, Stat] = {}
    for signum, limit_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, kill_s)):
        signalled: set[tuple[int, int]] = set()
        deadline, empty = clock() + limit_s, 0
        while True:
            with contextlib.suppress(OSError):  # no free descriptor: keep the members of the last look
                living = {pid: stat for pid, stat in members().items() if stat.state not in ("Z", "X")}
                empty = 0 if living else empty + 1
            for pid, stat in living.items():
                if (pid, stat.started) not in signalled:
                    signalled.add((pid, stat.started))
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        send(pid, signum)
            if empty == 2 or clock() >= deadline:  # twice: a process born while /proc was read shows in the next look
                break
            sleep(LOOK_S)
    return sorted(living.values(), key=lambda stat: stat.pid)


def unended(living: list[Stat]) -> str:
    """One sentence about the processes that could not be ended."""
    pids = first_of([f"{stat.pid} (state {stat.state})" for stat in living], 8)
    return (
        f"{len(living)} of the job's processes live on after SIGKILL: {pids}; one in state D waits for its disk, "
        "network file system or device"
    )
