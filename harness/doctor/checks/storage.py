"""Checks of shared memory and disks: what NCCL, Ray and the kernel's own services need."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from harness.doctor.facts import Facts
from harness.doctor.gather.storage import MOST_USED, ROOM, Place, SharedMemory, Storage
from harness.doctor.outcome import GIB, Asked, Fine, Outcome, Problem, bytes_, check, duration, new_container

_RAY_SLOW = 10**10  # above this size Ray refuses to start rather than use a disk (REQUIRE_SHM_SIZE_THRESHOLD)
_RAY_SHARE, _RAY_MOST = 0.3, 200 * 10**9  # share and upper bound of the object store (ray/_private/ray_constants.py)
# Length of Ray's longest socket path below its temporary directory.
_SOCKET_NAME = len("/session_2026-01-01_00-00-00_000000_1234567/sockets/plasma_store")
_RAY_PATH_MOST = 107 - _SOCKET_NAME  # 107 bytes: the path of a Unix socket on Linux


@check("shared-memory", "shm", "memory", host=True)
def shared_memory(facts: Facts, request: Asked) -> Iterator[Outcome]:
    """Reads the size of /dev/shm. Error below 1 GiB in all or free: NCCL takes tens of MB a pair of ranks,
    torch's loaders a batch a worker, and docker's default is 64 MiB. Warning when Ray's object store (30 % of
    memory) does not fit and less than 10 GB is free, where Ray refuses /dev/shm
    (ray/_private/ray_constants.py)."""
    shm, memory = facts.shm, facts.memory
    assert shm is not None and memory is not None
    measured = f"{bytes_(shm.free)} of {bytes_(shm.total)} free"
    of = memory.limit or memory.total
    store = min(_RAY_SHARE * of, _RAY_MOST)
    option = f"--shm-size {max(8, int(store * 1.1 / GIB) + 1)}g"
    remount = "sudo mount -o remount,size=50% /dev/shm"
    fix = new_container(option, f"here {remount}") if shm.isolated else f"{remount}   # a container needs {option}"
    if shm.total < GIB:
        yield Problem(
            "error",
            "/dev/shm is too small",
            measured,
            "NCCL's shared-memory transport and torch's data loaders fail or die of SIGBUS, often hours later",
            fix,
        )
    elif shm.free < GIB:
        yield Problem(
            "error",
            "/dev/shm is nearly full",
            measured,
            "NCCL's shared-memory transport and torch's data loaders die of SIGBUS, often hours later",
            "ls -lS /dev/shm | head   # see the check stale-segments",
        )
    elif shm.free < store and store > _RAY_SLOW and shm.free * 0.95 < _RAY_SLOW:
        yield Problem(
            "warning",
            "/dev/shm holds less than Ray's object store wants",
            f"{measured}, Ray wants {bytes_(store)}",
            "Ray refuses to start, or puts the store on a disk: rollouts and weights then cross a disk",
            fix,
        )
    else:
        yield Fine(measured)


@check("stale-segments", "shm", host=True)
def stale_segments(facts: Facts, request: Asked) -> Iterator[Outcome]:
    """Lists files in /dev/shm that no visible process has mapped or open. Info when there are any, warning when
    they hold more than a tenth of it. Our bound."""
    shm = facts.shm
    assert shm is not None
    size, count = sum(item.size for item in shm.stale), len(shm.stale)
    blind = f"; {shm.unreadable} of our processes could not be asked" if shm.unreadable else ""
    if not count:
        yield Fine(f"no segment without a process{blind}")
        return
    oldest = max(shm.stale, key=lambda item: item.age_s)
    measured = f"{count} files, {bytes_(size)}, the oldest {duration(oldest.age_s)} old ({oldest.name}){blind}"
    yield Problem(
        "warning" if size > 0.1 * shm.total else "info",
        "shared memory of earlier runs is still there",
        measured,
        "it is memory that nobody can use; an engine that finds a segment of its own name may attach to it",
        _segments_fix(shm),
    )


def _segments_fix(shm: SharedMemory) -> str:
    """Remove what no process has open, after each process was asked. Where not all can be asked, only list it."""
    provable = not shm.isolated and not (shm.root and shm.unreadable)
    action = "rm" if provable else "ls -l"
    return (
        # Without `command -v` a missing fuser would look like "no process uses it".
        f"command -v fuser && {'sudo ' if provable and not shm.root else ''}"
        'find /dev/shm -maxdepth 1 -type f -user "$(id -u)" -mmin +1 '
        f'-exec sh -c \'fuser -s "$1" 2>/dev/null || {action} -- "$1"\' _ {{}} \\;'
        + ("" if provable else "   # no process that can be asked uses them: rm those that no other one needs")
    )


@check("disk-space", "storage", host=True)
def space(facts: Facts, request: Asked) -> Iterator[Outcome]:
    """Reads the free space of the disks that Ray, checkpoints, logs and caches use. Error above 95 % in use,
    where Ray refuses to spill and to create objects (RAY_local_fs_capacity_threshold), or below 1 GiB free, and
    where Ray's directory cannot be written. Warning above 85 % with less than 50 GiB free."""
    storage = facts.storage
    assert storage is not None
    problems: list[Outcome] = []
    # Room is a matter of a file system, so one place speaks for it. Permission is a matter of each directory.
    for place in _disks(storage.places):
        problems += _too_full(storage, place)
    for place in storage.places:
        if not place.writable:
            problems.append(
                Problem(
                    "error" if _is_of_ray(place) else "warning",
                    f"the place of {place.purpose} cannot be written",
                    place.existing,
                    "the run fails when it first writes there",
                    _writable_fix(storage, place),
                )
            )
    yield from problems or [
        Fine("; ".join(f"{place.existing} {bytes_(place.free)} free" for place in _disks(storage.places)))
    ]


def _too_full(storage: Storage, place: Place) -> Iterator[Problem]:
    """Report a file system that is full, or soon will be."""
    used = 1 - place.free / place.total if place.total else 0.0
    measured = f"{place.existing}: {bytes_(place.free)} of {bytes_(place.total)} free ({used:.0%} used)"
    ray = _is_of_ray(place)
    fix = _space_fix(storage, place, ray)
    if used > 0.95 or place.free < GIB:
        why = "a checkpoint, a log or a compile cache that cannot be written ends the run; a full /tmp locks ssh out"
        if ray:
            why = "Ray refuses to spill above 95 % and its logs have no room; a full /tmp also locks ssh out"
        yield Problem("error", f"the disk of {place.purpose} is full", measured, why, fix)
    elif used > MOST_USED and place.free < ROOM:
        why = "Ray's logs and spilled objects grow by the hour; above 95 % Ray refuses to spill"
        yield Problem("warning", f"the disk of {place.purpose} has little room", measured, why, fix)


@check("inodes", "storage", host=True)
def inodes(facts: Facts, request: Asked) -> Iterator[Outcome]:
    """Reads the free inodes of the same disks. Warning below 2 % or 10,000, error below 1,000. Our bounds: Ray
    writes a file a worker, and caches many."""
    assert facts.storage is not None
    problems: list[Outcome] = []
    counted = [place for place in _disks(facts.storage.places) if place.inodes]
    for place in counted:
        if place.inodes_free < 0.02 * place.inodes or place.inodes_free < 10_000:
            problems.append(
                Problem(
                    "error" if place.inodes_free < 1000 else "warning",
                    f"the disk of {place.purpose} has few inodes left",
                    f"{place.existing}: {place.inodes_free:,} of {place.inodes:,} free",
                    '"No space left on device" with gigabytes free: Ray writes a file a worker, and caches many',
                    f"du --inodes -x -d2 {shlex.quote(place.existing)} 2>/dev/null | sort -n | tail",
                )
            )
    yield from problems or [
        Fine("; ".join(f"{place.existing} {place.inodes_free:,} free" for place in counted) or "uncounted")
    ]


def _is_of_ray(place: Place) -> bool:
    return place.purpose.startswith("Ray")


@check("ray-directory", "storage", host=True)
def ray_directory(facts: Facts, request: Asked) -> Iterator[Outcome]:
    """Measures the path of Ray's directory. Error when a socket's path below it exceeds 107 bytes, the limit of
    Linux (unix(7)); info when it lies on the root file system and another disk has room."""
    storage = facts.storage
    assert storage is not None
    ray = next(filter(_is_of_ray, storage.places), None)
    if len(storage.ray.encode()) > _RAY_PATH_MOST:
        yield Problem(
            "error",
            "the path of Ray's directory is too long",
            f"{storage.ray} ({len(storage.ray)} bytes, at most {_RAY_PATH_MOST})",
            "Ray cannot name its sockets below it and does not start",
            _elsewhere(storage) or "export RAY_TMPDIR=/tmp",
        )
    elif ray is not None and ray.device == storage.root_device and not request.joined and _elsewhere(storage):
        yield Problem(
            "info",
            "Ray writes its logs to the system's own disk",
            f"{storage.ray}, {bytes_(ray.free)} free",
            "when they fill it nothing works any more, ssh included",
            _elsewhere(storage),
        )
    else:
        yield Fine(storage.ray)


@check("old-sessions", "storage", host=True)
def old_sessions(facts: Facts, request: Asked) -> Iterator[Outcome]:
    """Counts sessions of Ray without a process, and their size. Warning above 20 GiB or a tenth of the disk,
    info from 20 of them on. Our bounds: Ray never removes them."""
    storage = facts.storage
    assert storage is not None
    ray = next(filter(_is_of_ray, storage.places), None)
    more = "at least " if storage.sessions_partial else ""
    measured = f"{storage.sessions} sessions, {more}{bytes_(storage.sessions_size)} in {storage.ray}"
    large = ray is not None and storage.sessions_size > min(20 * GIB, 0.1 * ray.total)
    if storage.sessions and (large or storage.sessions >= 20 or storage.sessions_partial):
        yield Problem(
            "warning" if large else "info",
            "logs of earlier Ray sessions are still there",
            measured,
            "Ray never removes them; they are what fills /tmp over the weeks",
            _sessions_fix(storage.ray, isolated=facts.shm is None or facts.shm.isolated),
        )
    else:
        yield Fine(measured)


def _sessions_fix(folder: str, isolated: bool) -> str:
    """Remove the sessions that no process names in its command line, which every user may read, as a raylet does. Where
    not all processes are visible, only list them."""
    action = "ls -ld" if isolated else "rm -r"
    return (
        f"command -v pgrep && for session in {shlex.quote(folder)}/session_2*; do "
        f'pgrep -f "${{session##*/}}" >/dev/null || {action} -- "$session"; done'
        + (
            "   # no process that is visible here uses them: rm -r those that no other container does"
            if isolated
            else ""
        )
    )


def _disks(places: tuple[Place, ...]) -> list[Place]:
    """One place per file system: the first that is on it."""
    # A dictionary keeps the last value of a key, so the places go in from the back and come out turned round again.
    return list({place.device: place for place in reversed(places)}.values())[::-1]


def _space_fix(storage: Storage, place: Place, ray: bool) -> str:
    largest = f"du -xh -d2 {shlex.quote(place.existing)} 2>/dev/null | sort -h | tail"
    return (ray and _elsewhere(storage)) or largest


def _writable_fix(storage: Storage, place: Place) -> str:
    path = shlex.quote(place.path)
    if place.purpose.startswith("Ray"):
        return _elsewhere(storage) or 'export RAY_TMPDIR="$(mktemp -d)"'
    if place.path == "/tmp":
        return "sudo chmod 1777 /tmp"
    return f'sudo mkdir -p {path} && sudo chown "$(id -u)" {path}'


def _elsewhere(storage: Storage) -> str:
    """The command that moves Ray's directory to another disk; empty where no other will do."""
    disk = storage.other_disk
    if not disk or len(f"{disk}/ray".encode()) > _RAY_PATH_MOST:
        return ""
    return f"export RAY_TMPDIR={shlex.quote(disk)}   # before `ray start`"
