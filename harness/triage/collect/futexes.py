"""Whether the threads of a process wait for locks that only another thread of it could release, as the kernel says.

FUTEX_PRIVATE_FLAG of futex(2) says that no other process uses a lock: those of multiprocessing have no such flag.
"""

from __future__ import annotations

import contextlib
import platform
import re

from harness.triage.collect.channels import side_tids
from harness.triage.collect.connections import PROC

_FUTEX = {"x86_64": "202", "aarch64": "98"}.get(platform.machine(), "")
# linux/futex.h: FUTEX_PRIVATE_FLAG, FUTEX_CMD_MASK without FUTEX_CLOCK_REALTIME; FUTEX_WAIT, _LOCK_PI, _WAIT_BITSET
_PRIVATE, _COMMAND, _LOCKS = 128, 127, (0, 6, 9)
_SWITCHES = re.compile(r"^voluntary_ctxt_switches:\s+(\d+)$", re.MULTILINE)


def single(pid: int, beat: int = 0) -> bool:
    """Whether a process has one thread only, beside its heartbeat's and torch's worker server."""
    try:
        return not any(side_tids(pid, beat))
    except OSError:  # it ended, or it is another user's
        return False


def locked_threads(pid: int, beat: int = 0) -> int:
    """How many threads a process has beside that of its heartbeat, if all of them wait at one moment without a limit
    for locks in its own memory, so that nothing can wake any of them but a signal; else 0.

    `beat`: thread id of the heartbeat. Neither it nor torch's worker server, which the probe starts, takes a lock of
    the program. The threads are read one after the other. A thread that has not slept anew until all were read stood
    in its wait all the time, so there was a moment at which all of them did.
    """
    if not _waits_for_good(pid, pid):
        return 0
    try:
        tids = [pid, *side_tids(pid, beat)]
        before = {tid: _switches(pid, tid) for tid in tids}
        locked = all(_waits_for_good(pid, tid) for tid in tids)
        after = {tid: _switches(pid, tid) for tid in (pid, *side_tids(pid, beat))}
    except OSError:  # it ended, or it is another user's
        return 0
    return len(tids) if locked and before == after else 0


def in_shared_lock(pid: int) -> bool:
    """Whether the main thread of a process waits for a lock that other processes may use, as those of multiprocessing
    are: futex(2) without FUTEX_PRIVATE_FLAG."""
    operation, _ = _futex(pid, pid)
    return not operation & _PRIVATE and operation & _COMMAND in _LOCKS


def _waits_for_good(pid: int, tid: int) -> bool:
    """Whether a thread waits without a limit for a lock in the memory of its process."""
    operation, limit = _futex(pid, tid)
    return bool(operation & _PRIVATE) and operation & _COMMAND in _LOCKS and limit == 0


def _futex(pid: int, tid: int) -> tuple[int, int]:
    """The operation of the futex(2) call in which a thread waits, and the address of its time limit; an operation that
    is none if it is in no such call, or may not be inspected."""
    with contextlib.suppress(OSError, ValueError):  # it ended, or it is another user's
        words = (PROC / str(pid) / "task" / str(tid) / "syscall").read_text().split()
        if len(words) >= 7 and words[0] == _FUTEX:
            return int(words[2], 16), int(words[4], 16)
    return _COMMAND, 0


def _switches(pid: int, tid: int) -> int:
    """How often a thread has gone to sleep so far; -1 where the kernel does not say."""
    count = _SWITCHES.search((PROC / str(pid) / "task" / str(tid) / "status").read_text())
    return int(count[1]) if count else -1
