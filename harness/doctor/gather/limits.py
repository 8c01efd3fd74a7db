"""Limits of this process and its container: files, threads, cores, memory. Reads cgroup versions 1 and 2."""

from __future__ import annotations

import os
import re
import resource
from dataclasses import dataclass
from typing import Any

from harness.doctor.gather.files import integer, read


@dataclass(frozen=True)
class Limits:
    """Limits of the process. None: unlimited, or not reported by this kernel."""

    files_soft: int | None = None
    files_hard: int | None = None
    processes: int | None = None  # ulimit -u, which counts threads
    memlock: int | None = None
    map_count: int | None = None
    tasks_max: int | None = None  # pids.max of the cgroup
    tasks_now: int | None = None
    cpus: int = 1  # cores of the host
    cpus_allowed: int = 1  # cores that the affinity allows
    cpu_quota: float | None = None  # quota of the cgroup, in cores


@dataclass(frozen=True)
class Memory:
    total: int
    available: int
    limit: int | None = None  # limit of the cgroup, if it is below the host's total
    used: int | None = None  # use of the cgroup, without page cache that can be dropped
    overcommit: int = 0  # vm.overcommit_memory


_UNLIMITED = 1 << 60  # cgroup version 1 writes a number close to 2**63 for "no limit"


def limits() -> dict[str, Any]:
    """Return the fields of `Limits`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return {
        "files_soft": _bounded(soft), "files_hard": _bounded(hard),
        "processes": _bounded(resource.getrlimit(resource.RLIMIT_NPROC)[0]),
        "memlock": _bounded(resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]),
        "map_count": integer("/proc/sys/vm/max_map_count"),
        "tasks_max": _smallest("pids", "pids.max", "pids.max"),
        "tasks_now": _controller_value("pids", "pids.current", "pids.current"),
        "cpus": os.cpu_count() or 1, "cpus_allowed": len(os.sched_getaffinity(0)), "cpu_quota": _quota(),
    }  # fmt: skip


def memory() -> dict[str, Any]:
    """Return the fields of `Memory`."""
    kib = dict(re.findall(r"^(\w+):\s+(\d+) kB", read("/proc/meminfo"), re.MULTILINE))
    total = int(kib.get("MemTotal", 0)) * 1024
    limit = _smallest("memory", "memory.limit_in_bytes", "memory.max")
    limited = limit is not None and limit < total
    return {
        "total": total, "available": int(kib.get("MemAvailable", 0)) * 1024, "limit": limit if limited else None,
        "used": _used() if limited else None, "overcommit": integer("/proc/sys/vm/overcommit_memory") or 0,
    }  # fmt: skip


def _used() -> int | None:
    """Memory of the cgroup without inactive file pages, which the kernel drops before it kills a process."""
    used = _controller_value("memory", "memory.usage_in_bytes", "memory.current")
    for folder in _folders("memory"):
        match = re.search(r"^(?:total_)?inactive_file (\d+)", read(f"{folder}/memory.stat"), re.MULTILINE)
        if match and used is not None:
            return max(0, used - int(match[1]))
    return used


def _quota() -> float | None:
    cores = []
    for folder in _folders("cpu"):  # `cpu.max` is of cgroup version 2, the two files of CFS are of version 1
        words = read(f"{folder}/cpu.max").split()
        if len(words) == 2 and words[0].isdigit():
            cores.append(int(words[0]) / int(words[1]))
        quota, period = integer(f"{folder}/cpu.cfs_quota_us"), integer(f"{folder}/cpu.cfs_period_us")
        if quota and quota > 0 and period:
            cores.append(quota / period)
    return min(cores, default=None)


def _smallest(controller: str, *names: str) -> int | None:
    """The tightest limit from this process's cgroup up to the root; None without one."""
    upper_limits = [integer(f"{folder}/{name}") for folder in _folders(controller) for name in names]
    return min((value for value in upper_limits if value is not None and 0 < value < _UNLIMITED), default=None)


def _controller_value(controller: str, *names: str) -> int | None:
    for folder in _folders(controller):
        for name in names:
            if (value := integer(f"{folder}/{name}")) is not None:
                return value
    return None


def _folders(controller: str) -> list[str]:
    """This process's cgroup directories of a controller: its own first, then its parents."""
    folders = []
    for line in read("/proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        roots = [f"/sys/fs/cgroup/{controller}"] if controllers else ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"]
        while True:
            folders += [folder for root in roots if os.path.isdir(folder := f"{root}{path.rstrip('/')}")]
            if path in ("/", ""):
                break
            path = os.path.dirname(path)
    return folders


def _bounded(value: int) -> int | None:
    return None if value == resource.RLIM_INFINITY else value
