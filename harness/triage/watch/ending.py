"""Ends a job for good, or says who is left: SIGTERM, a grace, SIGKILL, and a wait that has an end."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Mapping

from harness.triage.watch.observe import Stat

GRACE_S = 3.0  # between SIGTERM and SIGKILL: torchrun passes SIGTERM on and waits for its workers that long
KILL_S = 10.0  # after SIGKILL: a process whose memory takes longer to free, or that sleeps in the kernel, is left
LOOK_S = 0.05  # whether a process has ended


def end(
    members: Callable[[], Mapping[int, Stat]],
    *,
    grace_s: float = GRACE_S,
    kill_s: float = KILL_S,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    send: Callable[[int, int], None] = os.kill,
) -> list[Stat]:
    """End everybody in `members()`, which is asked again and again, so that nobody escapes by a fork.

    Returns those that live after `grace_s` and `kill_s`. A member is known by pid and start time: whoever is given the
    number of one that ended is not a member and gets no signal.
    """
    living: dict[int, Stat] = {}
    for signum, limit_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, kill_s)):
        signalled: set[tuple[int, int]] = set()
        deadline, empty = clock() + limit_s, 0
        while True:
            with contextlib.suppress(OSError):  # no descriptor is free: those of the last look
                living = {pid: stat for pid, stat in members().items() if stat.state not in ("Z", "X")}
                empty = 0 if living else empty + 1
            for pid, stat in living.items():
                if (pid, stat.started) not in signalled:
                    signalled.add((pid, stat.started))
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        send(pid, signum)
            if empty == 2 or clock() >= deadline:  # twice: one that was born while /proc was read is in the next look
                break
            sleep(LOOK_S)
    return sorted(living.values(), key=lambda stat: stat.pid)


def unended(living: list[Stat]) -> str:
    """One sentence about those who could not be ended."""
    pids = ", ".join(f"{stat.pid} (state {stat.state})" for stat in living[:8])
    more = f" and {len(living) - 8} more" if len(living) > 8 else ""
    return (
        f"{len(living)} of the job's processes live on after SIGKILL: {pids}{more}; one in state D waits for its disk, "
        "network file system or device"
    )
