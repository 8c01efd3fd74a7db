"""Which processes have a lock of multiprocessing open for which one of them waits, and of which of these a thread runs.

Such a lock is a semaphore in a file of shared memory. /proc/PID/syscall has the address for which a thread waits,
/proc/PID/maps the file that is mapped there. Nobody but those that have the file mapped can release the lock. The
kernel does not know who holds it, and does not free it when its holder is killed.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from harness.triage.collect import futexes
from harness.triage.collect.connections import PROC
from harness.triage.evidence import SharedLock

_DELETED = " (deleted)"  # behind the path of a file without a name, in /proc/PID/maps


class _Mapping(NamedTuple):
    """A mapping of a file: its device and inode, which are the same in every process, and its path."""

    begin: int
    end: int
    identity: tuple[str, str]
    path: str


def look(waiting: Mapping[int, int]) -> dict[int, SharedLock]:
    """Pid -> the lock of other processes for which one of its threads waits; left out where that is not known.

    `waiting`: pid -> the thread that waits. All processes of this host are read once if there is any.
    """
    locks = {pid: mapping for pid, tid in waiting.items() if (mapping := _waited_for(pid, tid)) is not None}
    wanted = {mapping.identity for mapping in locks.values()}
    sharers: dict[tuple[str, str], list[int]] = {identity: [] for identity in wanted}
    for pid, identity in _holders(wanted):
        sharers[identity].append(pid)
    runs = {pid for its in sharers.values() for pid in its if not futexes.beside_in_locks(pid, waiting.get(pid, pid))}
    return {
        pid: SharedLock(
            _name(mapping),
            tuple(sharers[mapping.identity]),
            tuple(sharer for sharer in sharers[mapping.identity] if sharer in runs),
        )
        for pid, mapping in locks.items()
    }


def _waited_for(pid: int, tid: int) -> _Mapping | None:
    """The shared mapping with the lock for which a thread waits."""
    address = futexes.address(pid, tid)
    return next((each for each in _shared(pid) if each.begin <= address < each.end), None) if address else None


def _name(mapping: _Mapping) -> str:
    """The path of a lock's file. The C library makes a semaphore under a name that it then takes away, and links it to
    its own one: the folder says which, by the file's inode."""
    path = mapping.path.removesuffix(_DELETED)
    if path == mapping.path:
        return path
    with contextlib.suppress(OSError):
        inode = int(mapping.identity[1])
        return next((each.path for each in os.scandir(os.path.dirname(path)) if each.inode() == inode), mapping.path)
    return mapping.path


def _holders(wanted: Collection[tuple[str, str]]) -> Iterator[tuple[int, tuple[str, str]]]:
    for name in os.listdir(PROC) if wanted else ():
        if name.isdigit():
            yield from ((int(name), its) for its in {each.identity for each in _shared(int(name))} & set(wanted))


def _shared(pid: int) -> Iterator[_Mapping]:
    """The shared mappings of a process (proc_pid_maps(5)); none if it ended, or may not be inspected."""
    with contextlib.suppress(OSError), open(f"{PROC}/{pid}/maps") as lines:
        for line in lines:
            if " rw-s " not in line:
                continue
            addresses, _, _, device, inode, *path = line.split(maxsplit=5)
            begin, _, end = addresses.partition("-")
            yield _Mapping(int(begin, 16), int(end, 16), (device, inode), path[0].strip() if path else "")
