"""Locks of whole files (flock, lockf) on this host: who holds each, who waits for it, and what its holder does.

/proc/locks (proc_locks(5)) numbers the locks; a line with "->" is a process that waits for the lock of that number, set
in further for each that stands before it. The file stands in /proc/PID/fdinfo of the holder, or of one that waits.
Whoever tries again and again, as filelock does, is in no such line, but opens the file each time: inotify(7) counts
that. Only locks that concern the job are kept.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import struct
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain

from harness.triage.collect import connections, proc, redact
from harness.triage.collect.connections import PROC
from harness.triage.evidence import FileLock

MOST = 256  # of a host; a database has one or two
WAKING_S = 1.5 / proc.TICKS  # whoever only wakes up and sleeps again may be charged one tick of the kernel's clock
SOON_S = 300.0  # half of NCCL's default timeout in torch: whoever sleeps for less may release a lock in time
SLICE_S = 0.05  # inotify merges equal events, so they are read this often
_LINE = re.compile(r"(\d+): ( *-> )?(?:FLOCK|POSIX|OFDLCK) +ADVISORY +WRITE +(-?\d+) (\S+) 0 EOF")
_OPENED = 0x20  # IN_OPEN of linux/inotify.h
_EVENT = struct.Struct("iIII")  # struct inotify_event without its name
_INIT = frozenset({"systemd", "init"})  # names of processes that adopt those whose parent has ended


@dataclass(frozen=True)
class _Row:
    """A lock that is held, by the kernel's list. `pid`: its holder, 0 if that is not seen."""

    pid: int
    inode: str
    waiters: tuple[int, ...]
    path: str


def look(
    host: str, pids: Collection[int], window_s: float, *, sleep: Callable[[float], None] = time.sleep
) -> tuple[FileLock, ...]:
    """Return the locks that processes of the job hold, wait for or try to take, as far as their files may be read.

    `pids`: processes of the job. `window_s`: how long to look; in the second half, what holders beside the job do.
    """
    if not pids:
        return ()
    rows = list(_rows())
    tries = _tries({row.path for row in rows}, window_s / 2, sleep)
    rows = [row for row in rows if {row.pid, *row.waiters} & set(pids) or tries is None or tries.get(row.path)]
    table = proc.parents() if rows else {}
    trees = {row.pid: proc.descendants((row.pid,), table) for row in rows if row.pid and row.pid not in pids}
    before = {pid: _spent(tree) for pid, tree in trees.items()}
    sleep(window_s / 2)
    remaining = {(row.pid, row.inode) for row in _rows()} if rows else set()
    locks = []
    for row in rows:
        if (row.pid, row.inode) not in remaining:
            continue
        lock = FileLock(
            host=host,
            path=row.path,
            pid=row.pid,
            command=redact.command(proc.arguments(row.pid)) if row.pid else "",
            waiters=row.waiters,
            tries=-1 if tries is None else tries.get(row.path, 0),
        )
        if row.pid in trees:
            lock = _with_holder(lock, trees[row.pid], before[row.pid], table)
        locks.append(lock)
    return tuple(locks)


def _with_holder(
    lock: FileLock, tree: list[int], before: Mapping[int, proc.Look], table: Mapping[int, int]
) -> FileLock:
    """The lock with what its holder, and every process below it, did between two looks."""
    after = _spent(tree)
    spent_s = sum(look.cpu_s for look in after.values())
    cpu_s = spent_s - sum(look.cpu_s for look in before.values())
    moved = sum(look.io_bytes for look in after.values()) - sum(look.io_bytes for look in before.values())
    woken = any(look.switches != before[pid].switches or look.state != before[pid].state for pid, look in after.items())
    busy = cpu_s > WAKING_S or moved > 0
    works = f"{cpu_s:.2f} s of CPU and {moved / 1000:.0f} kB between two looks" if busy else ""
    sockets = connections.Sockets()
    connected = any(sockets.of(pid).peers for pid in tree)
    parent = table.get(lock.pid, 0)
    adopted = parent == 1 or proc.comm(parent) in _INIT
    sleeps = any(look.sleeps_s is not None and look.sleeps_s < SOON_S for look in after.values())
    idle = not (works or woken or connected or sleeps)
    return replace(lock, works=works, idle=idle, abandoned=adopted, spent_s=spent_s)


def _spent(tree: list[int]) -> dict[int, proc.Look]:
    return {pid: proc.look(pid) for pid in tree}


def _rows() -> Iterator[_Row]:
    try:
        lines = _LINE.findall((PROC / "locks").read_text())
    except OSError:  # the kernel lists no locks
        return
    waiters: dict[str, list[int]] = {}
    for number, waits, pid, _ in lines:
        if waits:
            waiters.setdefault(number, []).append(int(pid))
    for number, pid, inode in [(number, int(pid), inode) for number, waits, pid, inode in lines if not waits][:MOST]:
        holder, path = _holder(pid, inode)
        its = tuple(waiters.get(number, ()))
        its = (*(each for each in its if each > 0), *_unnamed(its, inode, {holder, *chain(*waiters.values())}))
        if path := path or next(filter(None, (_awaited(waiter, inode) for waiter in its)), ""):
            yield _Row(holder, inode, its, path)


def _holder(pid: int, inode: str) -> tuple[int, str]:
    """The process that has a lock, and the file; (0, "") where none is seen.

    The kernel names who took the lock. If that one has ended, a process that inherited its descriptor has it; an open
    file description lock names nobody (-1), and 0 stands for a process of another pid namespace.
    """
    path = _locked_path(pid, inode) if pid > 0 else ""
    if path or (pid > 0 and (PROC / str(pid)).exists()):
        return (pid, path)
    heirs = {heir: path for heir in _everybody() if (path := _locked_path(heir, inode))}
    if not heirs:
        return (0, "")
    # A descriptor is inherited, and with it the lock: whoever started all others that have it took it.
    table = proc.parents() if len(heirs) > 1 else {}
    first = next((heir for heir in heirs if heirs.keys() <= set(proc.descendants((heir,), table))), 0)
    return (first, next(iter(heirs.values())))


def _everybody() -> list[int]:
    return [int(name) for name in os.listdir(PROC) if name.isdigit()]


def _unnamed(waiters: Collection[int], inode: str, others: Collection[int]) -> list[int]:
    """Who waits for a lock of an open file description, of which the kernel names no process: those that sleep in such
    a wait and have the file open, if they are as many as the kernel counts; else nobody."""
    count = sum(waiter < 0 for waiter in waiters)
    if not count:
        return []
    asleep = [pid for pid in _everybody() if pid not in others and _sleeps_in_lock(pid) and _awaited(pid, inode)]
    return asleep if len(asleep) == count else []


def _sleeps_in_lock(pid: int) -> bool:
    """Whether a thread of a process waits for a lock of fcntl."""
    with contextlib.suppress(OSError):
        for thread in os.listdir(PROC / str(pid) / "task"):
            with contextlib.suppress(OSError):
                if (PROC / str(pid) / "task" / thread / "wchan").read_text().startswith("fcntl_setlk"):
                    return True
    return False


def _locked_path(pid: int, inode: str) -> str:
    """The file of a lock, by the descriptors of its holder."""
    with contextlib.suppress(OSError):  # it ended, or it is another user's
        for number in os.listdir(PROC / str(pid) / "fdinfo"):
            with contextlib.suppress(OSError):  # closed meanwhile
                if f" {inode} " in (PROC / str(pid) / "fdinfo" / number).read_text():
                    return os.readlink(PROC / str(pid) / "fd" / number)
    return ""


def _awaited(pid: int, inode: str) -> str:
    """The file of a lock, by the descriptors of a process that waits for it: where its holder's may not be read."""
    with contextlib.suppress(OSError):  # it ended, or it is another user's
        for number in os.listdir(PROC / str(pid) / "fd"):
            with contextlib.suppress(OSError):  # closed meanwhile
                file = PROC / str(pid) / "fd" / number
                if file.stat().st_ino == int(inode.rpartition(":")[2]):
                    return os.readlink(file)
    return ""


def _tries(paths: Collection[str], window_s: float, sleep: Callable[[float], None]) -> dict[str, int] | None:
    """How often each file was opened within some time, at most once a slice; None where inotify is not to be had."""
    try:
        library = ctypes.CDLL(None, use_errno=True)
        descriptor = library.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, AttributeError):
        descriptor = -1
    if descriptor < 0:
        return None
    tries: dict[str, int] = {}
    try:
        watched = {library.inotify_add_watch(descriptor, os.fsencode(path), _OPENED): path for path in paths}
        for _ in range(max(1, round(window_s / SLICE_S))):
            sleep(SLICE_S)
            with contextlib.suppress(BlockingIOError):
                data = os.read(descriptor, 1 << 16)
                for number in {
                    event[0] for event in _EVENT.iter_unpack(data[: len(data) // _EVENT.size * _EVENT.size])
                }:
                    if number in watched:
                        tries[watched[number]] = tries.get(watched[number], 0) + 1
    finally:
        os.close(descriptor)
    return tries
