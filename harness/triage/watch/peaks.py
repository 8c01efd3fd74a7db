"""What each process of a job held in memory at most, and whom the kernel killed for memory.

The kernel keeps a high-water mark of each process (VmHWM), which ends with it, so it is read once a tick. Memory that
several processes share counts in each of them.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from harness.triage.collect import roles
from harness.triage.collect.proc import Facts
from harness.triage.collect.redact import command
from harness.triage.evidence import Peak, Process
from harness.triage.watch.observe import argv
from harness.triage.watch.progress import ProcessSnapshot

MAX_PROCESSES = 4_096  # that are remembered; the smallest are forgotten
LIVED_S = 2.0  # chosen: a tool that a program calls, such as git, ends sooner
MAX_NAME = 60  # characters of the command of a process without a role
_MARK = re.compile(rb"^VmHWM:\s*(\d+) kB", re.MULTILINE)
# The kernel's report of a kill, of mm/oom_kill.c: Linux 4.19 to 6.18.
_KILLED = re.compile(r"Killed process (\d{1,10}) (.{0,400})")
_HELD = re.compile(r"(?:anon|file|shmem)-rss:(\d{1,15})kB")


def high_water(pid: int) -> int:
    """Bytes that a process held in memory at most so far; 0 once it has ended."""
    try:
        mark = _MARK.search(Path(f"/proc/{pid}/status").read_bytes())
    except OSError:
        return 0
    return int(mark[1]) << 10 if mark else 0  # a zombie has none


class Peaks:
    """Takes a snapshot of a job's processes once a tick. `host`: this one."""

    def __init__(self, host: str, high_water: Callable[[int], int] = high_water) -> None:
        self._host, self._high_water = host, high_water
        self._peaks: dict[str, Peak] = {}
        self._lived_s: dict[str, tuple[float, float]] = {}  # the first and the last look that saw the process alive
        self._looked_at_s = 0.0

    def look(self, processes: Iterable[ProcessSnapshot], at_s: float) -> None:
        """Read the high-water mark of each process of this host. `at_s`: the time of the snapshot."""
        self._looked_at_s = at_s
        for process in processes:
            if not process.state or not (peak_bytes := self._high_water(process.pid)):
                continue
            self._lived_s[process.key] = self._lived_s.get(process.key, (at_s, at_s))[0], at_s
            before = self._peaks.get(process.key)
            name = process.name or (before.name if before else _name(process.pid))
            self._peaks[process.key] = Peak(self._host, process.pid, name, peak_bytes)
        if len(self._peaks) > MAX_PROCESSES:
            largest = sorted(self._peaks.items(), key=lambda item: -item[1].peak_bytes)
            self._peaks = dict(largest[: MAX_PROCESSES // 2])
            self._lived_s = {key: self._lived_s[key] for key in self._peaks}

    def of_job(self, killed: Mapping[int, int], failed: Mapping[int, Process]) -> tuple[Peak, ...]:
        """The peaks of all processes, the largest first.

        `killed`: pid -> bytes, of those whom the kernel killed for memory. `failed`: pid -> its end, as its launcher
        tells it.
        """
        peaks = [
            replace(
                peak,
                peak_bytes=max(peak.peak_bytes, killed.get(peak.pid, 0)),
                killed=peak.pid in killed,
                exit_code=-signal.SIGKILL if peak.pid in killed else process.exit_code if process else None,
                rank=process.rank if process else None,
                first_by_launcher=process is not None and process.first_by_launcher,
                gone_s=self._gone_s(key),
            )
            for key, peak in self._peaks.items()
            for process in [failed.get(peak.pid)]
        ]
        return tuple(sorted(peaks, key=lambda peak: -peak.peak_bytes))

    def _gone_s(self, key: str) -> float:
        """How long before the last look a process was seen last; 0 for one that lived shorter than `LIVED_S`."""
        began_s, lived_s = self._lived_s[key]
        return round(self._looked_at_s - lived_s, 1) if lived_s - began_s >= LIVED_S else 0.0


def _name(pid: int) -> str:
    words = argv(pid)
    role = roles.role_of(Facts(pid, argv=words))
    program = (*(os.path.basename(word) for word in words[:2]), *words[2:])
    return role if role != "process" else command(program)[:MAX_NAME]


def kernel_log(since_s: float) -> list[str]:
    """The lines of the kernel's log since a moment of the monotonic clock, as far as it still has them; empty if it may
    not be read.

    A record is "6,1339,5140900,-;text", whose third field is the microseconds on that clock
    (Documentation/ABI/testing/dev-kmsg).
    """
    lines: list[str] = []
    with contextlib.suppress(OSError):  # it may not be opened, or no more is there
        log = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            while True:
                with contextlib.suppress(BrokenPipeError):  # the record was overwritten while it was read
                    head, _, text = os.read(log, 8_192).decode(errors="replace").partition(";")
                    if int(head.split(",")[2]) >= since_s * 1e6:
                        lines.append(text)
        finally:
            os.close(log)
    return lines


def killed_by_kernel(lines: Iterable[str]) -> dict[int, int]:
    """Pid -> bytes that it held, of the processes that the kernel killed for memory."""
    kills = (match for line in lines if (match := _KILLED.search(line)))
    return {int(kill[1]): sum(int(size) << 10 for size in _HELD.findall(kill[2])) for kill in kills}
