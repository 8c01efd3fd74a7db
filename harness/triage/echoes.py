"""Tells a process's own error from the echo of another process's end."""

from __future__ import annotations

import re

OUT_OF_MEMORY = "dmesg | grep -i oom   # SIGKILL is how the kernel ends a process when memory runs out"
# What the death or the silence of a peer looks like in the error of a victim: never a first error.
_ECHO = re.compile(
    r"timed? ?out|timeout|connection (reset|closed|refused)|broken pipe|peer|watchdog|ActorDied|ActorUnavailable"
    r"|RayActorError|WorkerCrashed|NCCL (communicator|error)|remote process exited|monitoredBarrier|aborted|SIGTERM"
    r"|KeyboardInterrupt",
    re.I,
)


def is_echo(error: str) -> bool:
    """Whether an error is what the death or the silence of a peer looks like."""
    return bool(_ECHO.search(error))
