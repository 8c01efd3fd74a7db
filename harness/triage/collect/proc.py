"""What the kernel says of a process: /proc, read from outside, whatever state the process is in.

Only Linux has it. Fields are those of proc(5). Another user's process shows its state and command line, but neither
its environment, its I/O nor its kernel stack: the notes say so.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass, field
from pathlib import Path

from harness.triage.collect import connections, redact, traffic

PROC = Path("/proc")
TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
OTHER_USER = "it belongs to another user: run harness as that user or as root"


@dataclass(frozen=True)
class Look:
    """One look at a process: the numbers of an evidence.Sample, but for its time and its Python threads."""

    state: str
    cpu_s: float = 0.0
    switches: int = 0
    io_bytes: int = 0
    wchan: str = ""
    net_bytes: int = 0


@dataclass(frozen=True)
class Facts:
    """What does not change while a process is watched. `environ` is filtered: redact.variables."""

    pid: int
    ppid: int = 0
    argv: tuple[str, ...] = ()
    command: str = ""
    comm: str = ""
    title: str = ""  # where the process replaced its command line by one: sglang::scheduler, ray::Actor.step
    environ: dict[str, str] = field(default_factory=dict)
    age_s: float = 0.0
    exit_code: int | None = None  # of a zombie
    start_ticks: int = 0  # since boot
    notes: tuple[str, ...] = ()


def look(pid: int) -> Look:
    """State, CPU seconds, voluntary switches, bytes and kernel function of a process now; state "gone" without one."""
    stat = _stat(pid)
    if stat is None:
        return Look("gone")
    cpu = (int(stat[11]) + int(stat[12])) / TICKS  # utime and stime: fields 14 and 15 of proc(5), ours begin at 3
    return Look(stat[0], cpu, _switches(pid), _io(pid), _read(pid, "wchan").strip("0 \n"), _net(pid))


def facts(pid: int) -> Facts:
    """Everything else; for a process that is gone, a note."""
    stat = _stat(pid)
    if stat is None:
        return Facts(pid, notes=(f"process {pid} is gone: it ended before it could be looked at",))
    notes = []
    argv = tuple(one for one in _read(pid, "cmdline").rstrip("\0 ").split("\0") if one)
    comm = _read(pid, "comm").strip()
    title = argv[0] if argv and "::" in argv[0] else ""
    environ: dict[str, str] = {}
    try:
        raw = (PROC / str(pid) / "environ").read_bytes().decode(errors="replace")
        environ = redact.variables(dict(one.split("=", 1) for one in raw.split("\0") if "=" in one))
    except PermissionError:
        notes.append(f"its environment cannot be read: {OTHER_USER}")
    except OSError:
        pass  # it ended meanwhile, and the samples say so
    exit_code = None
    if stat[0] == "Z":
        notes.append("it has ended and its parent has not collected it (a zombie)")
        status = int(stat[49])  # exit_code, field 52
        exit_code = -(status & 0x7F) if status & 0x7F else status >> 8
    return Facts(
        pid, int(stat[1]), argv, redact.command(argv) or f"[{comm}]", comm, redact.text(title, 200), environ,
        max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - int(stat[19]) / TICKS), exit_code, int(stat[19]),
        tuple(notes),
    )  # fmt: skip


def parents() -> dict[int, int]:
    """pid -> parent pid of every process that can be seen now."""
    table = {}
    for entry in PROC.iterdir():
        if entry.name.isdigit() and (stat := _stat(int(entry.name))):
            table[int(entry.name)] = int(stat[1])
    return table


def descendants(roots: tuple[int, ...], table: dict[int, int]) -> list[int]:
    """The roots and every process below them, oldest generation first, each once."""
    children: dict[int, list[int]] = {}
    for pid, parent in sorted(table.items()):
        children.setdefault(parent, []).append(pid)
    found, queue = dict.fromkeys(roots), list(roots)
    while queue:
        below = [pid for pid in children.get(queue.pop(0), []) if pid not in found]
        found |= dict.fromkeys(below)
        queue += below
    return list(found)


def alive(pid: int) -> bool:
    """It exists and is not a zombie."""
    stat = _stat(pid)
    return stat is not None and stat[0] not in ("Z", "X")


def started_wall_s(pid: int) -> float | None:
    """Unix time at which a process began; None when it is gone."""
    stat = _stat(pid)
    if stat is None:
        return None
    return time.time() - (time.clock_gettime(time.CLOCK_BOOTTIME) - int(stat[19]) / TICKS)


def arguments(pid: int) -> tuple[str, ...]:
    """The command line as it is: for deciding what a process is, never for writing down."""
    return tuple(one for one in _read(pid, "cmdline").rstrip("\0 ").split("\0") if one)


def _stat(pid: int) -> list[str] | None:
    """Fields of /proc/PID/stat from the state on (index 0 is field 3); None when there is no such process."""
    text = _read(pid, "stat")
    return text.rpartition(")")[2].split() if text else None


def _read(pid: int, name: str) -> str:
    try:
        return (PROC / str(pid) / name).read_text(errors="replace")
    except OSError:  # it ended, or it is another user's: the caller's other fields tell which
        return ""


def _switches(pid: int) -> int:
    total = 0
    with contextlib.suppress(OSError):  # it ended while its threads were counted
        for task in (PROC / str(pid) / "task").iterdir():
            with contextlib.suppress(OSError):  # a thread may end at any moment
                for line in (task / "status").read_bytes().splitlines():
                    if line.startswith(b"voluntary_ctxt_switches:"):
                        total += int(line.split()[1])
    return total


def _net(pid: int) -> int:
    """Bytes through its open TCP connections."""
    return traffic.of(connections.inodes(pid))


def _io(pid: int) -> int:
    """Bytes through read(2) and write(2), cached ones and pipes included, and those that storage moved for it: a page
    fault is no read(2), and a write(2) counts only once it returns. 0 where it is another user's."""
    found = dict(line.split(": ", 1) for line in _read(pid, "io").splitlines() if ": " in line)
    return sum(int(found.get(key, 0)) for key in ("rchar", "wchar", "read_bytes", "write_bytes"))
