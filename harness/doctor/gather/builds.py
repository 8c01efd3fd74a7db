"""Lock files of torch's extension builds (`torch.utils.cpp_extension`), and which of them a process still holds.

The process that makes the file keeps it open until its build is done (`torch/utils/file_baton.py`). A process that
finds it waits until it is gone, without a limit. A file that no process has open was left by a build that was killed.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.doctor.gather.files import pids, read


@dataclass(frozen=True)
class Lock:
    """A lock file of a build of torch's extensions. `holder`: a process that has it open; 0 if none is known."""

    path: str
    age_s: float
    holder: int = 0


@dataclass(frozen=True)
class Builds:
    folder: str
    locks: tuple[Lock, ...] = ()
    unreadable: int = 0  # processes whose open files could not be read
    remote: bool = False  # a network file system: a holder may be on another machine


_REMOTE = ("nfs", "nfs4", "lustre", "beegfs", "gpfs", "ceph", "cifs", "smb3", "9p", "fuse")
_MOST = 10_000  # directories that are searched
# Files that torch writes beside its lock. A `lock` without any of them belongs to another program.
_BUILT = re.compile(r"build\.ninja|\.ninja_(?:log|deps)|main\.cpp|.*\.(?:so|o)")


def builds() -> dict[str, Any]:
    """Return the fields of `Builds` for the folder in which this process's torch would build."""
    return look(folder(os.environ))


def folder(environ: Mapping[str, str]) -> str:
    """The folder in which torch builds (`_get_build_directory`, `get_default_build_root`)."""
    cache = environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return environ.get("TORCH_EXTENSIONS_DIR") or os.path.join(cache, "torch_extensions")


def look(root: str) -> dict[str, Any]:
    """Find the lock files below a folder. It has a directory per extension, possibly below one per Python and CUDA
    version."""
    now = time.time()
    locks: list[dict[str, Any]] = []
    for path in _locks(root):
        try:
            about = os.stat(path)
        except OSError:  # its build ended meanwhile
            continue
        key = (about.st_dev, about.st_ino)
        locks.append({"path": path, "age_s": max(0.0, now - about.st_mtime), "key": key, "owner": about.st_uid})
    owners = {lock["owner"] for lock in locks}  # the user that made a lock file also holds it
    holders, unreadable = _holders({lock["key"] for lock in locks}, owners) if locks else ({}, 0)
    # A build may have ended between the search and the look at the processes: then nothing waits for its lock.
    current = [
        {"path": lock["path"], "age_s": lock["age_s"], "holder": holders.get(lock["key"], 0)}
        for lock in locks
        if holders.get(lock["key"]) or os.path.exists(lock["path"])
    ]
    return {"folder": root, "locks": current, "unreadable": unreadable, "remote": _remote(root)}


def _locks(root: str) -> list[str]:
    # The root itself holds no build. Below it is a folder per extension, or one per version that holds them: depth 2.
    lock_paths, folders = [], [(root, 0)]
    visited = 0
    while folders and visited < _MOST:
        place, depth = folders.pop()
        visited += 1
        try:
            entries = list(os.scandir(place))
        except OSError:  # it does not exist, or we may not read it
            continue
        built = any(_BUILT.fullmatch(entry.name) for entry in entries)
        for entry in entries:
            if entry.name == "lock" and built and depth and not entry.is_dir(follow_symlinks=False):
                lock_paths.append(entry.path)
            elif depth < 2 and entry.is_dir():
                folders.append((entry.path, depth + 1))
    return sorted(lock_paths)


def _holders(keys: set[tuple[int, int]], owners: set[int]) -> tuple[dict[tuple[int, int], int], int]:
    """(device, inode) -> a process that has it open; and how many processes of these users could not be inspected."""
    holders: dict[tuple[int, int], int] = {}
    unreadable = 0
    for pid in pids():
        try:
            if os.stat(f"/proc/{pid}").st_uid not in owners:
                continue
            names = os.listdir(f"/proc/{pid}/fd")
        except PermissionError:
            unreadable += 1
            continue
        except OSError:  # it has ended
            continue
        for name in names:
            try:
                about = os.stat(f"/proc/{pid}/fd/{name}")
            except OSError:  # closed while we looked
                continue
            if (about.st_dev, about.st_ino) in keys:
                holders[about.st_dev, about.st_ino] = pid
    return holders, unreadable


def _remote(root: str) -> bool:
    """Whether other machines may write there too."""
    # The mount point with the longest path that contains the folder is its own; of equals the last covers the others.
    place = os.path.realpath(root)
    best = ("", "")
    for line in read("/proc/self/mounts").splitlines():
        _, at, kind, *_ = [*line.split(" "), "", "", ""]
        if (place == at or place.startswith(at.rstrip("/") + "/")) and len(at) >= len(best[0]):
            best = (at, kind)
    return best[1].split(".")[0] in _REMOTE
