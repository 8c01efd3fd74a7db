"""Where a run writes: shared memory and what earlier runs left there, Ray's directory, caches, dumps."""

from __future__ import annotations

import itertools
import os
import re
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from harness.doctor.gather.files import pids, read, status, title


@dataclass(frozen=True)
class Segment:
    """A file in shared memory that no living process has mapped or open."""

    name: str
    size: int
    age_s: float


@dataclass(frozen=True)
class SharedMemory:
    total: int
    free: int
    stale: tuple[Segment, ...] = ()
    unreadable: int = 0  # number of our processes whose maps could not be read
    root: bool = True  # the doctor was started by root, which may ask every process
    isolated: bool = False  # processes may use it that even root cannot ask from here: those of other containers


@dataclass(frozen=True)
class Place:
    """A directory to which a run writes. `existing`: the nearest parent that exists; the sizes are of its file
    system."""

    purpose: str
    path: str
    existing: str
    device: int
    total: int
    free: int
    inodes: int = 0  # 0: the file system does not count inodes
    inodes_free: int = 0
    writable: bool = True


@dataclass(frozen=True)
class Storage:
    places: tuple[Place, ...]
    ray: str = "/tmp/ray"
    root_device: int = 0
    sessions: int = 0  # Ray sessions of earlier runs whose processes are gone
    sessions_size: int = 0
    sessions_partial: bool = False  # there were too many files to count all
    other_disk: str = ""  # a directory beside the system's own disk in which Ray has room


_SHM = "/dev/shm"
_ALL_PROCESSES = 0xEFFFFFFC  # the inode of the PID namespace that has all others (PROC_PID_INIT_INO, linux/proc_ns.h)
_SYS_PTRACE = 1 << 19  # CAP_SYS_PTRACE: to ask processes of other users (linux/capability.h)
_YOUNG_S = 60.0  # a younger segment may not be mapped yet
_MOST_FILES = 20_000  # files of old sessions that are counted: about half a second
ROOM, MOST_USED = 50 << 30, 0.85  # free bytes, or the share in use, with which a disk has room for Ray


def shm() -> dict[str, Any]:
    """Return the fields of `SharedMemory`. Only files of the doctor's own user can be stale: what processes of others
    have open is not visible."""
    vfs = os.statvfs(_SHM)
    mapped, unreadable = _in_use()
    stale, now = [], time.time()
    for entry in os.scandir(_SHM):
        try:
            about = entry.stat(follow_symlinks=False)
        except FileNotFoundError:  # removed while we looked
            continue
        age = now - about.st_mtime
        if not stat.S_ISREG(about.st_mode) or about.st_uid != os.geteuid() or age < _YOUNG_S:
            continue
        if about.st_ino not in mapped:  # count blocks: a large segment takes memory only where it was written
            stale.append({"name": entry.name, "size": about.st_blocks * 512, "age_s": age})
    return {
        "total": vfs.f_blocks * vfs.f_frsize,
        "free": vfs.f_bavail * vfs.f_frsize,
        "stale": stale,
        "unreadable": unreadable,
        "root": os.geteuid() == 0,
        "isolated": _isolated(),
    }


def _isolated() -> bool:
    """Whether root does not see every process from here, as in most containers."""
    bounding_set = int(status(os.getpid()).get("CapBnd", "0"), 16)
    return os.stat("/proc/self/ns/pid").st_ino != _ALL_PROCESSES or not bounding_set & _SYS_PTRACE


def _in_use() -> tuple[set[int], int]:
    """Inodes below /dev/shm that a process has mapped or open, as far as processes of other users show it, and how
    many of our own could not be inspected."""
    inodes, unreadable = set[int](), 0
    for pid in pids():
        ours = False
        try:
            ours = os.stat(f"/proc/{pid}").st_uid == os.geteuid()
            # Both are asked: a mapping outlives its file descriptor, and a descriptor may not be mapped yet.
            for inode in itertools.chain(_mapped(pid), _opened(pid)):
                inodes.add(inode)
        except (FileNotFoundError, ProcessLookupError):  # it has ended
            continue
        except PermissionError:
            unreadable += ours
    return inodes, unreadable


def _mapped(pid: int) -> Iterator[int]:
    """Yield the inodes below /dev/shm that a process has mapped."""
    with open(f"/proc/{pid}/maps", errors="replace") as file:
        for line in file:
            if _SHM in line:
                yield int(line.split(maxsplit=5)[4])


def _opened(pid: int) -> Iterator[int]:
    """Yield the inodes below /dev/shm that a process has open."""
    for name in os.listdir(f"/proc/{pid}/fd"):
        path = f"/proc/{pid}/fd/{name}"
        try:
            if os.readlink(path).startswith(_SHM):
                yield os.stat(path).st_ino
        except FileNotFoundError:  # closed while we looked
            continue


def storage() -> dict[str, Any]:
    """Return the fields of `Storage`."""
    ray = ray_directory()
    named = [("Ray's logs and spilled objects", ray), ("/tmp", "/tmp"), ("the working directory", os.getcwd())]
    home = os.path.expanduser("~")
    named.append(("Hugging Face cache", os.environ.get("HF_HOME") or f"{home}/.cache/huggingface"))
    if folder := os.environ.get("TORCHINDUCTOR_CACHE_DIR"):
        named.append(("torch.compile cache", folder))
    sessions, size, partial = _old_sessions(ray)
    return {
        "places": [_place(purpose, path) for purpose, path in named], "ray": ray,
        "root_device": os.stat("/").st_dev, "sessions": sessions, "sessions_size": size, "sessions_partial": partial,
        "other_disk": _other_disk(read("/proc/self/mounts"), os.stat("/").st_dev),
    }  # fmt: skip


def ray_directory() -> str:
    """Where Ray puts its sessions: the directory that the raylet above us was given, else `ray` in $RAY_TMPDIR,
    $TMPDIR or /tmp (ray/_common/utils.py)."""
    pid = os.getppid()
    while pid > 1:
        if match := re.search(r"raylet .*--temp[-_]dir=(\S+)", title(pid)):
            return match[1]
        pid = int(status(pid).get("PPid", "0") or 0)
    return os.path.join(os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp", "ray")


def _other_disk(mounts: str, root_device: int) -> str:
    """The directory with most free space that is on another disk, may be written and has room for Ray; else empty."""
    free_space: dict[str, int] = {}
    for line in mounts.splitlines():
        source, path = line.split(" ")[:2]
        if not source.startswith("/dev/") or not os.path.isdir(path) or not os.access(path, os.W_OK | os.X_OK):
            continue
        vfs = os.statvfs(path)
        free, total = vfs.f_bavail * vfs.f_frsize, vfs.f_blocks * vfs.f_frsize
        if os.stat(path).st_dev != root_device and free > max(ROOM, (1 - MOST_USED) * total):
            free_space[path] = free
    return max(free_space, key=free_space.__getitem__, default="")


def _place(purpose: str, path: str) -> dict[str, Any]:
    existing = os.path.abspath(path)
    while not os.path.isdir(existing):
        existing = os.path.dirname(existing)
    vfs = os.statvfs(existing)
    return {
        "purpose": purpose, "path": path, "existing": existing, "device": os.stat(existing).st_dev,
        "total": vfs.f_blocks * vfs.f_frsize, "free": vfs.f_bavail * vfs.f_frsize, "inodes": vfs.f_files,
        "inodes_free": vfs.f_favail, "writable": os.access(existing, os.W_OK | os.X_OK),
    }  # fmt: skip


def _old_sessions(ray: str) -> tuple[int, int, bool]:
    """Number and bytes of Ray sessions in which no process lives, and whether counting was cut short."""
    try:
        names = sorted(name for name in os.listdir(ray) if re.fullmatch(r"session_\d.*", name))
    except OSError:  # Ray never ran here
        return 0, 0, False
    alive = {os.path.basename(path) for path in _named_by_processes(ray)}
    old = [name for name in names if name not in alive]
    size = files = 0
    for name in old:
        for folder, _, children in os.walk(os.path.join(ray, name)):
            for child in children:
                files += 1
                if files > _MOST_FILES:
                    return len(old), size, True
                try:
                    size += os.lstat(os.path.join(folder, child)).st_blocks * 512
                except FileNotFoundError:  # removed while we looked
                    continue
    return len(old), size, False


def _named_by_processes(ray: str) -> set[str]:
    """Sessions that the command line of a living process names, as those of a raylet and its agents do."""
    sessions = set()
    for pid in pids():
        sessions.update(re.findall(re.escape(ray) + r"/(session_[^/\s\0]+)", read(f"/proc/{pid}/cmdline")))
    return sessions
