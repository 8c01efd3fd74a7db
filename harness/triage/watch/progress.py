"""Decides when a job is suspected to stand still. A pure state machine: snapshots go in, a suspicion comes out.

A process stands still if nothing in it progressed for `stall_s`: its main thread is where it was, no collective was
enqueued, no event was recorded. Whether that is suspicious depends on what it does:

- Suspicious by itself: its main thread is inside a collective, a backward pass or a device's synchronize; it makes a
  process group, its engine falls asleep or wakes up, or weights are in transfer; its heartbeat is silent and it uses no
  CPU (stopped, or the interpreter lock is held); it is stopped, or sleeps uninterruptibly.
- Suspicious only while no other process progresses either: it waits for Ray or HTTP, has an open span, or has taken
  part in collectives. A process that asked for a long rollout waits as long as the rollout goes on.
- Suspicious only while the whole job does nothing at all, including processes without a heartbeat (they use no CPU):
  any other wait. A pause looks the same from here, but a look costs only seconds and tells them apart. The end of a
  process with a heartbeat counts as progress of the whole job: a launcher waits from its start on, and if its ranks
  have just ended, it has not waited for anything yet.
- Never suspicious: it waits for requests (an event loop, a worker without a task, a launcher), or the job sits in a
  debugger.

Time is taken from the snapshots, and a gap between two snapshots counts for at most `GAP_S`: a laptop that slept, or a
watchdog that was stopped together with its job, has not seen a stall. Time in which the watchdog itself had no
processor does not count either, because its job had none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from probes.collectives import HELPER, MAKERS, MEETING

GAP_S = 5.0  # chosen: several periods; a longer gap means that the host slept
BUSY = 0.2  # share of one CPU: a spinning wait uses all of it, a sleep in a system call nothing
QUIET = 0.02  # share of one CPU: less than this is a timer or a heartbeat
ALONE = frozenset({"collective", "backward", "device"})
TOGETHER = frozenset({"ray", "http"})
TRANSITIONS = frozenset({
    *MAKERS, MEETING, HELPER, "sleep", "wake",
    "wake_up", "flush", "sync_send", "sync_receive",
})  # fmt: skip
# A collective that times out destroys the evidence. Look when this share of its timeout has passed, if that is sooner.
TIMEOUT_SHARE = 0.6


@dataclass(frozen=True)
class ProcessSnapshot:
    """One process at one moment. `key` tells it from a later process with the same pid."""

    key: str
    pid: int
    state: str = "S"  # state in /proc/PID/stat; "" if the process is on another host
    cpu_s: float = 0.0
    beats: int | None = None  # None: it has no heartbeat
    progress: int = 0  # changes whenever its work progresses
    wait: str = ""  # what its main thread does (probes/heartbeat.py)
    spans: tuple[str, ...] = ()
    sequences: Mapping[str, int] = field(default_factory=dict)
    breakpoint: bool = False
    ended: bool = False
    timeout_s: float | None = None  # smallest timeout of its process groups
    name: str = ""  # for people: "rank 1", "launcher"
    loops: bool = False  # it has a heartbeat for its event loop alone: it belongs to no process group


@dataclass(frozen=True)
class Snapshot:
    """All processes at one moment. `starved_s`: for how long since the last snapshot the watchdog was runnable
    without a processor."""

    at_s: float
    processes: tuple[ProcessSnapshot, ...]
    starved_s: float = 0.0


def over(process: ProcessSnapshot) -> bool:
    """Whether a process has ended, by its own word or the kernel's."""
    return process.ended or process.state in ("Z", "X")


@dataclass(frozen=True)
class Suspect:
    process: ProcessSnapshot
    still_s: float
    why: str


@dataclass(frozen=True)
class Suspicion:
    """Processes that are suspected to stand still. `still_s`: the longest standstill among them."""

    suspects: tuple[Suspect, ...]

    @property
    def still_s(self) -> float:
        return max(suspect.still_s for suspect in self.suspects)

    @property
    def keys(self) -> frozenset[str]:
        return frozenset(suspect.process.key for suspect in self.suspects)


@dataclass
class _Track:
    process: ProcessSnapshot
    still_s: float = 0.0
    silent_s: float = 0.0
    cpu_s: float = 0.0  # CPU seconds at its last progress
    quiet_s: float = 0.0  # seconds in which it used next to no CPU
    quiet_cpu_s: float = 0.0  # CPU seconds when that began

    @property
    def busy(self) -> bool:
        return self.still_s > 0 and (self.process.cpu_s - self.cpu_s) / self.still_s > BUSY


class Progress:
    """Feed it a snapshot about once a second. `stall_s`: seconds without progress that make a suspicion."""

    def __init__(self, stall_s: float) -> None:
        self.stall_s = stall_s
        self._tracks: dict[str, _Track] = {}
        self._last_s: float | None = None
        self._since_end_s = math.inf  # seconds since a process with a heartbeat ended

    @property
    def debugged(self) -> tuple[ProcessSnapshot, ...]:
        """Processes that sit in a debugger. While there is one, nobody is suspected."""
        return tuple(
            track.process for track in self._tracks.values() if track.process.breakpoint and not track.process.ended
        )

    def limit_s(self, process: ProcessSnapshot) -> float:
        """After how many seconds this process is suspected: before its collectives time out."""
        if process.timeout_s is None:
            return self.stall_s
        return min(self.stall_s, TIMEOUT_SHARE * process.timeout_s)

    def feed(self, snapshot: Snapshot) -> Suspicion | None:
        """Take in a snapshot. Returns the suspicion that holds now, or None."""
        passed = 0.0 if self._last_s is None else snapshot.at_s - self._last_s - snapshot.starved_s
        # Nobody observed a longer gap, such as a laptop's sleep, so it proves no standstill.
        gap = min(max(0.0, passed), GAP_S)
        self._last_s = snapshot.at_s
        self._since_end_s = 0.0 if self._some_end(snapshot) else self._since_end_s + gap
        self._tracks = {process.key: self._tracked(process, gap) for process in snapshot.processes}
        if self.debugged:
            for track in self._tracks.values():
                track.still_s = track.silent_s = track.quiet_s = 0.0
            return None
        still = self._all_still()
        each = (self._suspect(track, all_still=still) for track in self._tracks.values())
        # Unnamed waits count only if no process stands in a wait with a name.
        suspects = [suspect for suspect in each if suspect] or self._nameless()
        return Suspicion(tuple(suspects)) if suspects else None

    def _some_end(self, snapshot: Snapshot) -> bool:
        """Whether a process that had a heartbeat has ended since the last snapshot."""
        living = {process.key for process in snapshot.processes if not over(process)}
        return any(
            track.process.beats is not None and not over(track.process) and key not in living
            for key, track in self._tracks.items()
        )

    def _tracked(self, process: ProcessSnapshot, gap: float) -> _Track:
        track = self._tracks.get(process.key)
        if track is None:
            return _Track(process, cpu_s=process.cpu_s, quiet_cpu_s=process.cpu_s)
        before, track.process = track.process, process
        track.quiet_s += gap
        if process.cpu_s - track.quiet_cpu_s > QUIET * max(track.quiet_s, GAP_S):
            track.quiet_s, track.quiet_cpu_s = 0.0, process.cpu_s
        track.silent_s = track.silent_s + gap if process.beats is not None and process.beats == before.beats else 0.0
        # A heartbeat that appears or disappears makes figures of before and after incomparable.
        if process.progress != before.progress or (process.beats is None) != (before.beats is None):
            track.still_s, track.cpu_s = 0.0, process.cpu_s
        elif process.beats is None and process.state not in ("T", "t", "D"):
            track.still_s, track.cpu_s = 0.0, process.cpu_s  # all that is known is that it lives
        else:
            track.still_s += gap
        return track

    def _suspect(self, track: _Track, *, all_still: bool) -> Suspect | None:
        process = track.process
        if over(process):
            return None
        if why := self._alone(track):
            return Suspect(process, max(track.still_s, track.silent_s), why)
        why = self._together(track) if all_still else ""
        still_s = min(max(track.still_s, track.silent_s), self._since_end_s)
        return Suspect(process, still_s, why) if why else None

    def _alone(self, track: _Track) -> str:
        process, limit = track.process, self.limit_s(track.process)
        if process.state in ("T", "t") and track.still_s >= limit:
            return "is stopped"
        if process.beats is None:
            return "sleeps in the kernel and cannot be interrupted" if track.still_s >= limit else ""
        if track.silent_s >= limit and not track.busy:
            return "does not answer: stopped, or its interpreter lock is held"
        if track.still_s < limit:
            return ""
        if process.wait in ALONE:
            return f"is in a {process.wait}" if process.wait == "collective" else f"waits in {process.wait}"
        transition = next((name for name in process.spans if name in TRANSITIONS), "")
        return f"is in {transition}" if transition else ""

    def _together(self, track: _Track) -> str:
        process = track.process
        if process.beats is None or process.wait == "idle" or track.still_s < self.stall_s:
            return ""
        if process.wait in TOGETHER:
            return f"waits for {process.wait}"
        if process.spans:
            return f"is in {process.spans[-1]}"
        if track.silent_s >= self.stall_s:
            return "does not answer, and computes"
        return "stands still" if any(process.sequences.values()) else ""

    def _nameless(self) -> list[Suspect]:
        """Every process that does not wait for requests, if the whole job does nothing at all; else none."""
        suspects: list[Suspect] = []
        if self._since_end_s < self.stall_s:
            return suspects
        for track in self._tracks.values():
            if over(track.process):
                continue
            # A loop that only runs its timers stands still; nothing says that it waits for requests.
            by_processor = track.process.beats is None or track.process.loops
            still_s = track.quiet_s if by_processor else track.still_s
            if not by_processor and track.process.wait == "idle":
                continue
            if still_s < self.stall_s:
                return []
            still_s = min(still_s, self._since_end_s)
            suspects.append(Suspect(track.process, still_s, "stands still, as the whole job does"))
        return suspects

    def _all_still(self) -> bool:
        """Whether no process with a heartbeat and work to do has progressed or ended within `stall_s`."""
        if self._since_end_s < self.stall_s:
            return False
        working = [t for t in self._tracks.values() if t.process.beats is not None and not t.process.ended]
        return all(track.still_s >= self.stall_s or track.process.wait == "idle" for track in working)
