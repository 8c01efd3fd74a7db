"""Whether float32 weights fit into the free memory of this machine and into its accelerator."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

WIDE, HALF = 4, 2  # bytes of a float32 number, and of a half-precision one that is sent
CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Room:
    """The available memory, in bytes. None: unknown."""

    device: str
    free: int | None  # of this machine
    accelerator: int | None  # total, used or not


def no_room(parameters: int, room: Room, *, engines: int, share: float, workers: int) -> str:
    """Return why a lifted stage of a policy of this many parameters does not fit, in one sentence; empty where it
    does.

    On a CPU, the float32 weights of the learner, what it sends, and the weights of each engine must be free at once,
    although the half-precision engines will make room. On an accelerator, each worker's part must fit into its
    `share`. Where memory is unknown, the stage is tried.
    """
    learner, engine = parameters * (WIDE + HALF), parameters * WIDE
    force = "--lifted runs it all the same"
    if room.device == "cuda":
        limit = None if room.accelerator is None else int(share * room.accelerator)
        if limit is not None and engine // workers > limit:
            return f"its float32 weights take {gib(engine // workers)} of the {gib(limit)} of a worker: {force}"
        return ""
    needed = learner + engines * engine
    if room.free is not None and needed > room.free:
        return f"float32 weights take {gib(needed)} and {gib(room.free)} are free: {force}"
    return ""


def free() -> int | None:
    """Return the bytes that this process can still get, limited by the machine and its control group; None where
    unknown.
    """
    available = []
    for line in _lines(Path("/proc/meminfo")):
        if line.startswith("MemAvailable:"):
            available.append(int(line.split()[1]) * 1024)
    limit, used = (_number(CGROUP / name) for name in ("memory.max", "memory.current"))
    if limit is not None and used is not None:
        available.append(max(0, limit - used))
    return min(available, default=None)


def unused() -> int | None:
    """Return the bytes of this process's accelerator that are free; None without one."""
    import torch

    return int(torch.cuda.mem_get_info()[0]) if torch.cuda.is_available() else None


def accelerator() -> int | None:
    """Return the total bytes of this process's accelerator; None without one."""
    import torch

    return int(torch.cuda.mem_get_info()[1]) if torch.cuda.is_available() else None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []


def _number(path: Path) -> int | None:
    text = "".join(_lines(path))
    return int(text) if text.isdigit() else None


def gib(size: int) -> str:
    """Return a number of bytes as text in GiB."""
    return f"{size / 2**30:.3g} GiB"
