"""Locks of whole files (flock, lockf) on this host: who holds each, and who waits for it in the kernel.

/proc/locks (proc_locks(5)) numbers the locks; a line with "->" is a process that waits for the lock of that number. The
file stands in /proc/PID/fdinfo of the holder. Whoever tries again and again, as filelock does, is in no such line.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator

from harness.triage.collect import proc, redact
from harness.triage.collect.connections import PROC
from harness.triage.evidence import FileLock

MOST = 256  # of a host; a database has one or two
_LINE = re.compile(r"(\d+): (-> )?(?:FLOCK|POSIX|OFDLCK) +ADVISORY +WRITE +(-?\d+) (\S+) 0 EOF")


def look(host: str) -> tuple[FileLock, ...]:
    """The locks whose holder's files may be read; none where the kernel lists no locks."""
    try:
        rows = _LINE.findall((PROC / "locks").read_text())
    except OSError:
        return ()
    waiters: dict[str, list[int]] = {}
    for number, waits, pid, _ in rows:
        if waits:
            waiters.setdefault(number, []).append(int(pid))
    holders = [(number, int(pid), inode) for number, waits, pid, inode in rows if not waits and int(pid) > 0]
    return tuple(
        FileLock(host, path, pid, redact.command(proc.arguments(pid)), tuple(waiters.get(number, ())))
        for number, pid, inode in holders[:MOST]
        for path in _paths(pid, inode)
    )


def _paths(pid: int, inode: str) -> Iterator[str]:
    """The file of a lock, once, by the descriptors of its holder."""
    with contextlib.suppress(OSError):  # it ended, or it is another user's
        for number in os.listdir(PROC / str(pid) / "fdinfo"):
            with contextlib.suppress(OSError):  # closed meanwhile
                if f" {inode} " in (PROC / str(pid) / "fdinfo" / number).read_text():
                    yield os.readlink(PROC / str(pid) / "fd" / number)
                    return
