"""A cheap look at a job from outside, once a second: its processes in /proc, and their heartbeats."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.triage.collect.proc import TICKS, delay_s, main_cpu_s
from harness.triage.collect.roles import infrastructure, raylet_address
from harness.triage.watch.progress import ProcessSnapshot, Snapshot
from probes.heartbeat import BEATS


@dataclass(frozen=True)
class Stat:
    """The needed fields of /proc/PID/stat."""

    pid: int
    ppid: int
    state: str
    cpu_s: float
    started: int  # ticks since boot
    group: int = 0  # process group


def table(proc: Path = Path("/proc")) -> dict[int, Stat]:
    """Every process of this host that can be read now."""
    stats = {}
    for entry in os.scandir(proc):
        if entry.name.isdigit():
            try:
                with open(f"{entry.path}/stat", "rb") as stream:
                    words = stream.read().rpartition(b")")[2].split()
                pid = int(entry.name)
                cpu_s = (int(words[11]) + int(words[12])) / TICKS
                stats[pid] = Stat(pid, int(words[1]), words[0].decode(), cpu_s, int(words[19]), int(words[2]))
            except (OSError, IndexError, ValueError):  # it ended while we looked
                continue
    return stats


def argv(pid: int) -> tuple[str, ...]:
    """The command line of a process, or the title that it gave itself; empty if it has ended."""
    try:
        return tuple(Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").decode(errors="replace").split("\0"))
    except OSError:
        return ()


def environ(pid: int) -> bytes:
    """The environment that a process was started with, as the kernel has it; empty if it may not be inspected."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


@dataclass(frozen=True)
class Kernel:
    """What the kernel says about this host's processes. `delay_s`: how long this thread has waited for a processor."""

    processes: Callable[[], dict[int, Stat]] = table
    argv: Callable[[int], Sequence[str]] = argv
    environ: Callable[[int], bytes] = environ
    main_cpu_s: Callable[[int], float | None] = main_cpu_s
    delay_s: Callable[[], float | None] = lambda: delay_s(os.getpid(), threading.get_native_id())


LINUX = Kernel()


class Observer:
    """Looks at the processes below `roots`, and at every process with a heartbeat in `directory`, also of other hosts.

    It ignores Ray's own processes, which serve the job and never stand still for it, and everything below `foreign`.
    This process and those above it never belong to the job; what is below this process does if it is a root itself.
    """

    def __init__(
        self,
        directory: Path,
        roots: tuple[int, ...],
        clock: Callable[[], float] = time.monotonic,
        kernel: Kernel = LINUX,
        *,
        foreign: frozenset[int] = frozenset(),
    ) -> None:
        self.directory, self.roots, self._foreign = directory, roots, foreign
        self._clock, self._kernel, self._host = clock, kernel, socket.gethostname()
        self._delayed_s: float | None = None
        self._began: dict[int, int] = {}  # root pid -> start time, so that a reused pid is no root
        self._over: set[str] = set()  # beat files of processes of this host that have ended
        self._marks: dict[tuple[int, int], bool] = {}  # (pid, start) -> whether our directory is in its environment
        self._known: dict[int, int] = {}  # pid -> start time: a process below a root stays ours when its parent ends

    def __call__(self) -> Snapshot:
        """Take one look: about 30 µs per process of the host."""
        stats = self._kernel.processes()
        self._follow(stats)
        beats = self._beats(stats)
        snapshots = []
        for pid in sorted(self._known):
            stat = stats[pid]
            beat = beats.pop((self._host, pid), {})
            if beat and beat.get("start_ticks") not in (0, stat.started):
                beat = {}  # the beat of an earlier process with this pid
            if not beat:
                if infrastructure(self._kernel.argv(pid)):
                    continue
                # Without a heartbeat only the main thread counts: a busy thread beside a waiting main thread is no
                # work.
                stat = replace(stat, cpu_s=self._kernel.main_cpu_s(pid) or stat.cpu_s)
            snapshots.append(_snapshot(f"{self._host}:{pid}:{stat.started}", pid, stat, beat))
        for (host, pid), beat in beats.items():
            beat_stat = stats.get(pid) if host == self._host else None
            if host == self._host and (beat_stat is None or beat.get("start_ticks") not in (0, beat_stat.started)):
                continue  # it has ended
            if pid != os.getpid() or host != self._host:
                snapshots.append(_snapshot(f"{host}:{pid}:{beat.get('start_ticks')}", pid, beat_stat, beat))
        return Snapshot(self._clock(), tuple(snapshots), self._starved())

    def _starved(self) -> float:
        """Seconds since the last look in which this thread was runnable and had no processor."""
        now = self._kernel.delay_s()
        before, self._delayed_s = self._delayed_s, now
        return 0.0 if now is None or before is None else max(0.0, now - before)

    def living(self) -> list[int]:
        """Pids below the roots now, including those whose parent has ended."""
        self._follow(self._kernel.processes())
        return sorted(self._known)

    def goes_on(self) -> bool:
        """Whether any process below the roots has not ended: one that nobody has collected yet has."""
        stats = self._kernel.processes()
        self._follow(stats)
        return any(stats[pid].state not in ("Z", "X") for pid in self._known)

    def members(self) -> dict[int, Stat]:
        """Every process that belongs to the job now: those below the roots, and daemons that the roots started and let
        go.

        Daemons are known by the watch directory in their environment. Below a raylet that is not the job's this proves
        nothing: a worker of a cluster that was up before belongs to that cluster.
        """
        stats = self._kernel.processes()
        self._follow(stats)
        ours = {os.getpid(), *_above(os.getpid(), stats)}
        self._marks = {key: mark for key, mark in self._marks.items() if key[0] in stats}
        for pid, stat in stats.items():
            if pid not in self._known and pid not in ours and self._marked(stat) and not self._elses(pid, stats):
                self._known[pid] = stat.started
        self._follow(stats)  # the processes below those
        return {pid: stats[pid] for pid in self._known}

    def _marked(self, stat: Stat) -> bool:
        """Whether a process was started with this watch directory in its environment."""
        if stat.pid in self._foreign or stat.state in ("Z", "X"):
            return False
        key = stat.pid, stat.started
        if key not in self._marks:
            mark = b"RLHF_HARNESS_WATCH=" + os.fsencode(self.directory.resolve())
            self._marks[key] = mark in self._kernel.environ(stat.pid).split(b"\0")
        return self._marks[key]

    def _elses(self, pid: int, stats: dict[int, Stat]) -> bool:
        """Whether a process is below a raylet that is not the job's."""
        return any(
            above not in self._known and raylet_address(self._kernel.argv(above)) for above in _above(pid, stats)
        )

    def _follow(self, stats: dict[int, Stat]) -> None:
        """Update which processes are below the roots, in time linear in the number of processes."""
        children: dict[int, list[int]] = {}
        own = stats.get(os.getpid())
        groups = {*self.roots} - {own.group if own else 0}  # our own group may hold other commands of the shell
        for stat in stats.values():
            children.setdefault(stat.ppid, []).append(stat.pid)
            if stat.group in groups and stat.pid != stat.group:
                children.setdefault(stat.group, []).append(stat.pid)
        for pid in self.roots:
            if pid in stats:
                self._began.setdefault(pid, stats[pid].started)
        self._known = {
            pid: started for pid, started in self._known.items() if pid in stats and stats[pid].started == started
        }
        begun = [pid for pid, started in self._began.items() if pid in stats and stats[pid].started == started]
        queue = [*begun, *self._known]
        ours = {os.getpid(), *_above(os.getpid(), stats)}
        visited = {*queue, *self._foreign, *ours}
        while queue:
            pid = queue.pop()
            if pid not in ours:
                self._known[pid] = stats[pid].started
            below = [child for child in children.get(pid, ()) if child not in visited]
            visited.update(below)
            queue += below

    def _beats(self, stats: dict[int, Stat]) -> dict[tuple[str, int], dict[str, Any]]:
        """The beats of living processes, here or on another host. The beat file of an ended process is not read
        again."""
        beats: dict[tuple[str, int], dict[str, Any]] = {}
        try:
            files = [entry for entry in os.scandir(self.directory / BEATS) if entry.name.endswith(".json")]
        except OSError:  # nobody beats yet
            return {}
        over = set()
        for entry in files:
            number = entry.name.partition(".")[0].partition("-")[0]  # <pid>.json or <pid>-<host>.json
            if entry.name in self._over and int(number) not in stats:
                over.add(entry.name)
                continue
            try:
                beat = json.loads(Path(entry.path).read_bytes())
                host, pid = str(beat["host"]), int(beat["pid"])
            except (OSError, ValueError, KeyError, TypeError):  # being rewritten: the next look reads it
                continue
            if host == self._host and pid not in stats and number == str(pid):
                over.add(entry.name)
            else:
                beats[host, pid] = beat
        self._over = over
        return beats


def _above(pid: int, stats: Mapping[int, Stat]) -> Iterator[int]:
    """The processes above one, nearest first."""
    visited = {pid}
    while (stat := stats.get(pid)) is not None and stat.ppid not in visited:
        pid = stat.ppid
        visited.add(pid)
        yield pid


def _snapshot(key: str, pid: int, stat: Stat | None, beat: dict[str, Any]) -> ProcessSnapshot:
    state, cpu_s = (stat.state, stat.cpu_s) if stat else ("", 0.0)
    if not beat:
        return ProcessSnapshot(key, pid, state, cpu_s)
    rank, role = beat.get("rank"), str(beat.get("role") or "process")
    return ProcessSnapshot(
        key, pid, state, cpu_s,
        beats=int(beat.get("count") or 0),
        progress=int(beat.get("progress_ns") or 0),
        wait=str(beat.get("wait") or ""),
        spans=tuple(str(span.get("name")) for span in beat.get("open") or ()),
        sequences=beat.get("sequences") or {},
        breakpoint=bool(beat.get("breakpoint")),
        ended=bool(beat.get("ended")),
        timeout_s=beat.get("timeout_s"),
        name=f"rank {rank}" if rank is not None else f"{role} {pid}",
        loops=bool(beat.get("loops")) and not beat.get("socket"),
    )  # fmt: skip
