"""The processes of an engine, from /proc: to end them by pid, and to notice that one died."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from scenarios.engines.engine_interface import ParameterRefused

CLOSING_PERIOD_MS = 500  # how long closing an engine may wait for the thread that watches its processes, in ms


def parents() -> dict[int, int]:
    """Return pid -> parent pid, for every process that can be read now."""
    table = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except OSError:  # it ended meanwhile
                continue
            table[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
    return table


def descendants(root: int) -> tuple[int, ...]:
    """Return `root` and every process below it, the oldest generation first."""
    children: dict[int, list[int]] = {}
    for pid, parent in parents().items():
        children.setdefault(parent, []).append(pid)
    pids, queue = [root], [root]
    while queue:
        below = children.get(queue.pop(0), [])
        pids += below
        queue += below
    return tuple(pids)


def titled(prefix: str) -> tuple[int, ...]:
    """Return this process and those below it whose title starts with `prefix`.

    Engines give such titles to the processes that they cannot live without. Other children (a compiler, `lscpu`, a
    resource tracker) may end at any time.
    """
    return tuple(pid for pid in descendants(os.getpid()) if pid == os.getpid() or title(pid).startswith(prefix))


def title(pid: int) -> str:
    """Return a process's title or its command line; "" once it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:  # it ended meanwhile
        return ""


def cores(ranks: int, allowed: Iterable[int]) -> str:
    """Return equal shares of these cores, one per rank: "0,1|2,3", as vLLM and SGLang read it.

    Raises ParameterRefused where there are fewer cores than ranks: ranks would wait for each other's core.
    """
    cpus = sorted(allowed)
    share = len(cpus) // ranks
    if not share:
        raise ParameterRefused(
            f"engine.tensor_parallel={ranks}: each rank needs a core of its own, and this process may use {len(cpus)}",
            fix=f"--set engine.tensor_parallel={len(cpus)}",
        )
    return "|".join(",".join(map(str, cpus[rank * share : (rank + 1) * share])) for rank in range(ranks))


@contextmanager
def bound_to_cores(variable: str, ranks: int) -> Iterator[None]:
    """Set this variable to cores for each rank while engines start, unless the user has set it.

    By default, engines give each rank a NUMA node of its own, and do not start where there are fewer nodes.
    """
    nodes = len(list(Path("/sys/devices/system/node").glob("node[0-9]*")))
    if ranks <= max(1, nodes) or os.environ.get(variable):
        yield
        return
    os.environ[variable] = cores(ranks, os.sched_getaffinity(0))
    try:
        yield
    finally:
        del os.environ[variable]


def alive(pid: int) -> bool:
    """Whether a process exists and is not a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X") and os.path.exists(f"/proc/{pid}")


def exit_code(pid: int) -> int | None:
    """Return the exit code of a process that has ended and was not collected by its parent; negative for a signal;
    else None.
    """
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    status = int(words[49])  # field 52 of proc(5); our list begins at field 3
    return (-(status & 0x7F) or status >> 8) if words[0] in ("Z", "X") else None


def first_to_end(pids: Iterable[int], closing: threading.Event) -> tuple[int, int | None] | None:
    """Return the process that ends first, with its exit code where its parent has not collected it; None once
    `closing` is set.

    The kernel wakes this thread immediately, which matters because one rank's death ends the others within
    milliseconds.
    """
    waiting, watched = select.poll(), {}
    with ExitStack() as handles:
        for pid in pids:
            try:
                handle = os.pidfd_open(pid)
            except ProcessLookupError:
                return pid, None
            handles.callback(os.close, handle)
            waiting.register(handle, select.POLLIN)
            watched[handle] = pid
        while watched and not closing.is_set():
            ended = [watched[handle] for handle, _ in waiting.poll(CLOSING_PERIOD_MS)]
            if ended and not closing.is_set():
                return ended[0], exit_code(ended[0])
    return None
