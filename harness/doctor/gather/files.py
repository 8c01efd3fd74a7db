"""Small readers of /proc and /sys. A missing file gives an empty answer, because other kernels may lack it."""

from __future__ import annotations

import os


def read(path: str) -> str:
    """The text of a file, stripped; empty if it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:  # absent on this kernel, or not readable: both mean "not known"
        return ""


def integer(path: str) -> int | None:
    """The integer in a file; None if there is none, and for `max`."""
    text = read(path).split()
    try:
        return int(text[0]) if text else None
    except ValueError:
        return None


def pids() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:  # no /proc: not Linux
        return []


def status(pid: int) -> dict[str, str]:
    """/proc/PID/status as a dictionary; empty if the process is gone."""
    lines = read(f"/proc/{pid}/status").splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def title(pid: int) -> str:
    """The title of a process: its command line, else its name."""
    command = read(f"/proc/{pid}/cmdline").replace("\0", " ").strip()
    return command or read(f"/proc/{pid}/comm")


def age(pid: int) -> float:
    """Seconds since the process was started; 0 if it is gone."""
    after = read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    uptime = read("/proc/uptime").split()
    if len(after) < 20 or not uptime:
        return 0.0
    return max(0.0, float(uptime[0]) - int(after[19]) / os.sysconf("SC_CLK_TCK"))
