"""What is seen of a job from outside, cheaply, once a second: its processes in /proc and their heartbeats."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.triage.collect.roles import infrastructure
from harness.triage.watch.progress import Seen, Snapshot

BEATS = "beats"
_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


@dataclass(frozen=True)
class Stat:
    """/proc/PID/stat, the fields of interest."""

    pid: int
    ppid: int
    state: str
    cpu_s: float
    started: int  # ticks since boot


def table(proc: Path = Path("/proc")) -> dict[int, Stat]:
    """Every process of this host that can be read now."""
    found = {}
    for entry in os.scandir(proc):
        if entry.name.isdigit():
            try:
                with open(f"{entry.path}/stat", "rb") as stream:
                    words = stream.read().rpartition(b")")[2].split()
                pid = int(entry.name)
                cpu_s = (int(words[11]) + int(words[12])) / _TICKS
                found[pid] = Stat(pid, int(words[1]), words[0].decode(), cpu_s, int(words[19]))
            except (OSError, IndexError, ValueError):  # it ended while we looked
                continue
    return found


def argv(pid: int) -> tuple[str, ...]:
    """The command line of a process, or what it calls itself; empty when it has ended."""
    try:
        return tuple(Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").decode(errors="replace").split("\0"))
    except OSError:
        return ()


class Observer:
    """Looks at the processes below `roots`, and at whoever beats in `directory`, also from other hosts.

    Not at Ray's own processes, which serve the job and never stand still for it, and not below `foreign`.
    """

    def __init__(
        self,
        directory: Path,
        roots: tuple[int, ...],
        clock: Callable[[], float] = time.monotonic,
        processes: Callable[[], dict[int, Stat]] = table,
        *,
        argv: Callable[[int], Sequence[str]] = argv,
        foreign: frozenset[int] = frozenset(),
    ) -> None:
        self.directory, self.roots, self._argv, self._foreign = directory, roots, argv, foreign
        self._clock, self._processes, self._host = clock, processes, socket.gethostname()
        self._known: dict[int, int] = {}  # pid -> started: whoever was below a root stays ours when its parent ends

    def __call__(self) -> Snapshot:
        """One look: about 30 µs a process of the host."""
        there = self._processes()
        self._follow(there)
        beats = self._beats()
        found = []
        for pid in sorted(self._known):
            stat = there[pid]
            beat = beats.pop((self._host, pid), {})
            if beat and beat.get("start_ticks") not in (0, stat.started):
                beat = {}  # of an earlier process with this pid
            if not beat and infrastructure(self._argv(pid)):
                continue
            found.append(_seen(f"{self._host}:{pid}:{stat.started}", pid, stat, beat))
        for (host, pid), beat in beats.items():
            other = there.get(pid) if host == self._host else None
            if host == self._host and (other is None or beat.get("start_ticks") not in (0, other.started)):
                continue  # it has ended
            if pid != os.getpid() or host != self._host:
                found.append(_seen(f"{host}:{pid}:{beat.get('start_ticks')}", pid, other, beat))
        return Snapshot(self._clock(), tuple(found))

    def living(self) -> list[int]:
        """Pids below the roots, as of now, those whose parent has ended included."""
        self._follow(self._processes())
        return sorted(self._known)

    def _follow(self, there: dict[int, Stat]) -> None:
        children: dict[int, list[int]] = {}
        for stat in there.values():
            children.setdefault(stat.ppid, []).append(stat.pid)
        self._known = {
            pid: started for pid, started in self._known.items() if pid in there and there[pid].started == started
        }
        queue = [pid for pid in (*self.roots, *self._known) if pid in there]
        while queue:
            pid = queue.pop()
            if pid != os.getpid():
                self._known[pid] = there[pid].started
            queue += [child for child in children.get(pid, ()) if child not in {*self._known, *self._foreign}]

    def _beats(self) -> dict[tuple[str, int], dict[str, Any]]:
        found: dict[tuple[str, int], dict[str, Any]] = {}
        try:
            files = [entry.path for entry in os.scandir(self.directory / BEATS) if entry.name.endswith(".json")]
        except OSError:  # nobody beats yet
            return {}
        for file in files:
            try:
                beat = json.loads(Path(file).read_bytes())
                found[str(beat["host"]), int(beat["pid"])] = beat
            except (OSError, ValueError, KeyError, TypeError):  # being rewritten: the next look will do
                continue
        return found


def _seen(key: str, pid: int, stat: Stat | None, beat: dict[str, Any]) -> Seen:
    state, cpu_s = (stat.state, stat.cpu_s) if stat else ("", 0.0)
    if not beat:
        return Seen(key, pid, state, cpu_s)
    rank, role = beat.get("rank"), str(beat.get("role") or "process")
    return Seen(
        key, pid, state, cpu_s,
        beats=int(beat.get("count") or 0),
        progress=int(beat.get("progress_ns") or 0),
        wait=str(beat.get("wait") or ""),
        spans=tuple(str(one.get("name")) for one in beat.get("open") or ()),
        sequences=beat.get("sequences") or {},
        breakpoint=bool(beat.get("breakpoint")),
        ended=bool(beat.get("ended")),
        timeout_s=beat.get("timeout_s"),
        name=f"rank {rank}" if rank is not None else f"{role} {pid}",
    )  # fmt: skip
