"""Shared memory that an engine leaves behind: its processes are killed, and nobody unlinks what they made.

SGLang 0.5.23 leaves a file and a semaphore at each start, and vLLM 0.32.0 on a CPU two files of 4 MiB for two ranks.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

FOLDER = Path("/dev/shm")
# Address, permissions, offset, device, inode, path. A semaphore is made under another name, which is deleted since.
_MAPPED = re.compile(rb"^\S+ \S+ \S+ \S+ (\d+) +/dev/shm/", re.MULTILINE)


class Segments:
    """The segments that processes of ours make from now on.

    Only what was not there before, what one of these processes had mapped or open, and what no process has any more is
    unlinked: a segment of a neighbour's job stays.
    """

    def __init__(self) -> None:
        self._before = _there()
        self._ours: set[int] = set()  # inodes

    def look(self, pids: Iterable[int]) -> None:
        """Take note of what these processes use, while they live."""
        self._ours |= _used_by(pids)

    def unlink_unused(self) -> None:
        """Unlink what was noted, once the processes have ended. Leaves what cannot be removed."""
        left = {name: inode for name, inode in _there().items() if inode in self._ours}
        left = {name: inode for name, inode in left.items() if self._before.get(name) != inode}
        in_use = _used_by(_processes()) if left else set()
        for name, inode in left.items():
            if inode not in in_use:
                with contextlib.suppress(OSError):
                    (FOLDER / name).unlink()


def _there() -> dict[str, int]:
    """The inode of each segment, by its name."""
    try:
        with os.scandir(FOLDER) as entries:
            return {entry.name: entry.inode() for entry in entries}
    except OSError:
        return {}


def _processes() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdecimal())


def _used_by(pids: Iterable[int]) -> set[int]:
    """Return the inodes of segments that these processes have mapped or open; nothing of a process that has ended."""
    inodes: set[int] = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            inodes.update(map(int, _MAPPED.findall(Path(f"/proc/{pid}/maps").read_bytes())))
        with contextlib.suppress(OSError):
            inodes.update(_open_files(pid))
    return inodes


def _open_files(pid: int) -> Iterator[int]:
    for link in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):  # closed meanwhile
            if os.readlink(f"/proc/{pid}/fd/{link}").startswith(f"{FOLDER}{os.sep}"):
                yield os.stat(f"/proc/{pid}/fd/{link}").st_ino
