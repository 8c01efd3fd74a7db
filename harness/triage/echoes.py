"""Tells a process's own error from the echo of another process's end."""

from __future__ import annotations

import re

MORE_MEMORY = "ask for more memory, or hold less"
HOST_MEMORY = "free -h; ulimit -v; cat /sys/fs/cgroup/memory.max   # which limit it met"
OUT_OF_MEMORY = "dmesg | grep -i oom   # on its host; SIGKILL is how the kernel ends a process when memory runs out"
# What the death or the silence of a peer looks like in the error of a victim: never a first error.
_ECHO = re.compile(
    r"timed? ?out|timeout|connection (reset|closed|refused)|broken pipe|peer|watchdog|ActorDied|ActorUnavailable"
    r"|RayActorError|WorkerCrashed|NCCL (communicator|error)|remote process exited|monitoredBarrier|aborted|SIGTERM"
    r"|SignalException|got signal|KeyboardInterrupt|got 0 bytes|eof \(this error originated|ncclRemoteError"
    r"|exiting prematurely|disconnected|IncompleteReadError|\bEOFError:?\s*$",  # EOFError: of a pipe
    re.I,
)
# Of these, what says that a peer has gone, by gloo, NCCL, TCPStore, RPC, Python's pipes and HTTP clients.
_PEER_LOST = re.compile(
    r"connection (was likely )?(reset|closed|refused)|broken pipe|remote process exited|got 0 bytes"
    r"|eof \(this error originated|NCCL|exiting prematurely|timed? ?out|timeout"
    r"|disconnected|IncompleteReadError|\bEOFError:?\s*$|\bConnection(Error|ResetError|AbortedError|RefusedError)\b"
    r"|RemoteProtocolError",
    re.I,
)
# What torch 2.13 raises on rank 0, with `wait_all_ranks` of several.
_MISSED = re.compile(r"Ranks? (\d{1,7}(?:, \d{1,7}){0,9999}) failed to pass monitoredBarrier")


def name_of(error: str) -> str:
    """The line of an error that names it: the first, or in a traceback the first after its frames. A message may have
    more lines, which torch fills with the exceptions behind it."""
    lines = error.strip().splitlines()
    head = max((at for at, line in enumerate(lines) if line.startswith("Traceback ")), default=-1)
    name = next((line for line in lines[head + 1 :] if line and not line[0].isspace()), lines[-1])
    return name.rstrip(": ")  # of an exception without a message


def missed_barrier(error: str) -> list[int]:
    """The ranks that did not come to a monitored barrier, by the error of one that did."""
    missing = _MISSED.search(error)
    return [int(rank) for rank in missing[1].split(", ")] if missing else []


def is_echo(error: str) -> bool:
    """Whether an error is what the death or the silence of a peer looks like."""
    return bool(_ECHO.search(error))


def lost_peer(error: str) -> bool:
    """Whether an error says that a peer has gone or does not answer any more."""
    return bool(_PEER_LOST.search(error))
