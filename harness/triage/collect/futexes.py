"""Whether the threads of a process wait for locks that only another thread of it could release, as the kernel says.

FUTEX_PRIVATE_FLAG of futex(2) says that no other process uses a lock: those of multiprocessing have no such flag.
"""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Mapping

from harness.triage.collect.channels import side_tids
from harness.triage.collect.connections import PROC

_FUTEX = {"x86_64": "202", "aarch64": "98"}.get(platform.machine(), "")
_SWITCHES = b"\nvoluntary_ctxt_switches:"  # of proc_pid_status(5)
# linux/futex.h: FUTEX_PRIVATE_FLAG, FUTEX_CMD_MASK without FUTEX_CLOCK_REALTIME; FUTEX_WAIT, _LOCK_PI, _WAIT_BITSET
_PRIVATE, _COMMAND, _LOCKS = 128, 127, (0, 6, 9)


def single(pid: int, beat: int = 0) -> bool:
    """Whether a process has one thread only, beside its heartbeat's and torch's worker server."""
    try:
        return not any(side_tids(pid, beat))
    except OSError:  # it ended, or it is another user's
        return False


def locked_threads(pid: int, before: Mapping[int, int], beat: int = 0) -> int:
    """How many threads a process has beside that of its heartbeat, if all of them wait at one moment without a limit
    for locks in its own memory, so that nothing can wake any of them but a signal; else 0.

    `before`: the answer of `switches` just now. `beat`: thread id of the heartbeat. Neither it nor torch's worker
    server, which the probe starts, takes a lock of the program. The threads are read one after the other. A thread that
    has not slept anew until all were read stood in its wait all the time, so there was a moment at which all of them
    did.
    """
    if not _waits_for_good(pid, pid):
        return 0
    try:
        tids = [pid, *side_tids(pid, beat)]
    except OSError:  # it ended, or it is another user's
        return 0
    if not all(_waits_for_good(pid, tid) for tid in tids):
        return 0
    after = switches(pid)
    still = before.keys() == after.keys() and all(tid in after and before[tid] == after[tid] for tid in tids)
    return len(tids) if still else 0


def switches(pid: int) -> dict[int, int]:
    """Thread id -> its voluntary context switches so far: how often it has gone to sleep."""
    switches_by_tid = {}
    with contextlib.suppress(OSError):  # it ended while its threads were counted
        for tid in os.listdir(f"{PROC}/{pid}/task"):
            with contextlib.suppress(OSError), open(f"{PROC}/{pid}/task/{tid}/status", "rb") as status:  # it may end
                _, _, count = status.read().partition(_SWITCHES)
                if count:
                    switches_by_tid[int(tid)] = int(count.split(None, 1)[0])
    return switches_by_tid


def in_shared_lock(pid: int) -> bool:
    """Whether the main thread of a process waits for a lock that other processes may use, as those of multiprocessing
    are: futex(2) without FUTEX_PRIVATE_FLAG."""
    operation, _, _ = _futex(pid, pid)
    return not operation & _PRIVATE and operation & _COMMAND in _LOCKS


def address(pid: int, tid: int) -> int:
    """The address of the shared lock for which a thread waits without a limit; 0 if it is in no such wait."""
    operation, limit, lock = _futex(pid, tid)
    return lock if not operation & _PRIVATE and operation & _COMMAND in _LOCKS and limit == 0 else 0


def beside_in_locks(pid: int, waiting: int) -> bool:
    """Whether every thread of a process, beside the one that waits and its main one, waits without a limit for a lock
    of whatever kind: none of them computes, sleeps or reads."""
    with contextlib.suppress(OSError):  # it ended, or it is another user's
        tids = {*side_tids(pid, 0)} - {waiting}
        waits = (_futex(pid, tid) for tid in tids)
        return all(operation & _COMMAND in _LOCKS and limit == 0 for operation, limit, _ in waits)
    return False


def _waits_for_good(pid: int, tid: int) -> bool:
    """Whether a thread waits without a limit for a lock in the memory of its process."""
    operation, limit, _ = _futex(pid, tid)
    return bool(operation & _PRIVATE) and operation & _COMMAND in _LOCKS and limit == 0


def _futex(pid: int, tid: int) -> tuple[int, int, int]:
    """The operation of the futex(2) call in which a thread waits, the address of its time limit and that of the lock;
    an operation that is none if it is in no such call, or may not be inspected."""
    with contextlib.suppress(OSError, ValueError):  # it ended, or it is another user's
        with open(f"{PROC}/{pid}/task/{tid}/syscall") as stream:
            words = stream.read().split()
        if len(words) >= 7 and words[0] == _FUTEX:
            return int(words[2], 16), int(words[4], 16), int(words[1], 16)
    return _COMMAND, 0, 0
