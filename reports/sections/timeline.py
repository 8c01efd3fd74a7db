"""A recorded run as a timeline: spans, engine calls, counters and marks of each process, on one clock.

It is read from the recording when it is drawn. A host's monotonic clock is anchored by the wall clock of its first
process.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probes.format import Run
from reports.text import clean

if TYPE_CHECKING:
    from reports.model import Triage

MOST_SLICES = 200_000  # of a run: the longest are kept. That is 30 MB of JSON, which Perfetto opens in seconds
MOST_POINTS = 50_000  # most counters and marks of a run
STALL_S = 10  # seconds without an event of any process: a step of a small run takes 1, a watchdog's threshold is 60
SYNCS = frozenset({"sync", "sync_send", "sync_receive", "proof", "flush", "sleep", "wake", "wake_up"})
GROUPS = frozenset({"init_process_group", "new_group", "split_group", "rendezvous", "_new_process_group_helper"})
TRACKS = ("phases", "collectives", "engine calls", "weight syncs", "process groups", "waits")  # from top to bottom


@dataclass(frozen=True)
class Slice:
    """Something that took time, in nanoseconds of the timeline's clock."""

    track: str
    name: str
    start_ns: int
    dur_ns: int
    args: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Point:
    """The values of a counter from this moment on, or a mark without values."""

    name: str
    at_ns: int
    values: dict[str, float] = field(default_factory=dict)
    args: dict[str, Any] = field(default_factory=dict)


@dataclass
class Process:
    name: str
    slices: list[Slice] = field(default_factory=list)
    points: list[Point] = field(default_factory=list)


@dataclass(frozen=True)
class Timeline:
    """`left_out`: number of slices and points that were not kept."""

    processes: list[Process]
    left_out: int = 0


def of(path: str, side: str = "") -> Timeline:
    """Return the timeline of a recorded run, which begins at 0. Raises FormatError where there is none."""
    run = Run(Path(path), strict=False)
    processes, seconds, dropped = _read(run, side)
    if processes:
        processes.append(_stalls(seconds, side))
    dropped += _bounded(processes)
    everything = [item.start_ns for process in processes for item in process.slices]
    everything += [item.at_ns for process in processes for item in process.points]
    first = min(everything, default=0)
    return Timeline([_moved(process, -first) for process in processes if process.slices or process.points], dropped)


def waits(triage: Triage) -> Timeline:
    """Return who waited for whom when the evidence was taken, which is the end of this timeline."""
    longest = max((float(wait.since_s or 0) for wait in triage.waits), default=0.0) or 1.0
    end = int(longest * 1e9)
    names: dict[str, str] = {}
    processes: dict[str, Process] = {}
    for node in triage.nodes:
        names[node.key] = clean(node.label or node.key)
        state = Slice("phases", clean(node.state) or "seen", 0, end, {"key": node.key})
        processes[node.key] = Process(f"{names[node.key]} ({clean(node.party)})", [state])
    for wait in triage.waits[:MOST_POINTS]:
        dur = int(float(wait.since_s or longest) * 1e9)  # a wait of unknown length is drawn as the longest
        args = {"for": names.get(wait.target, wait.target), "layer": wait.layer, "group": wait.group, "seq": wait.seq}
        process = processes.setdefault(wait.waiter, Process(clean(wait.waiter)))
        process.slices.append(Slice("waits", clean(wait.because) or wait.layer, end - dur, dur, args))
    for party in triage.culprits:
        if party.key in processes:
            processes[party.key].points.append(Point(f"culprit: {clean(party.why)}", end, args={"frame": party.frame}))
    return Timeline(list(processes.values()))


def _read(run: Run, side: str) -> tuple[list[Process], set[int], int]:
    """Return every process with its events, the seconds in which anything happened, and how many slices were
    dropped.
    """
    processes: list[Process] = []
    offsets: dict[str, int] = {}
    seconds: set[int] = set()
    process, offset, dropped = Process(""), 0, 0
    for event in run.events():
        at = _integer(event.get("t_ns"))
        if at is None:
            continue
        if event["kind"] == "open":
            host, wall = str(event.get("host", "")), _integer(event.get("wall_ns"))
            if wall is not None:
                offsets.setdefault(host, wall - at)
            offset = offsets.get(host, next(iter(offsets.values()), 0))
            name = f"{event.get('role')} {event.get('rank')} (pid {event.get('pid')}{f' on {host}' if host else ''})"
            process = Process(clean(f"{side} {name}".strip()))
            processes.append(process)
        seconds.add((at + offset) // 1_000_000_000)
        for item in _items(event, at, offset):
            if isinstance(item, Slice):
                process.slices.append(item)
            else:
                process.points.append(item)
        if len(process.slices) > 4 * MOST_SLICES:
            dropped += len(process.slices) - 2 * MOST_SLICES
            process.slices = heapq.nlargest(2 * MOST_SLICES, process.slices, key=lambda slice_: slice_.dur_ns)
    return processes, seconds, dropped


def _items(event: dict[str, Any], at: int, offset: int) -> Iterator[Slice | Point]:
    """Return what an event adds to the timeline. `at`: when it was recorded. `offset`: what to add to its times. Both
    in ns.
    """
    draw = _DRAWN.get(event["kind"])
    return draw(event, at + offset, offset) if draw is not None else iter(())


def _span(event: dict[str, Any], now: int, offset: int) -> Iterator[Slice]:
    start, dur, name = _integer(event.get("start_ns")), _integer(event.get("dur_ns")), clean(event.get("name"))
    if start is None or dur is None or dur < 0:
        return
    track = "phases"
    if event["kind"] == "collective":
        track = "collectives"
    elif name in SYNCS:
        track = "weight syncs"
    elif name in GROUPS:
        track = "process groups"
    failed = {} if event.get("ok", True) else {"error": clean(event.get("error", ""))}
    named = ("step", "version", "hook", "world_size", "rank", "group_name", "group", "bytes")
    yield Slice(track, name, start + offset, dur, failed | _kept(event, named))


def _call(event: dict[str, Any], now: int, offset: int) -> Iterator[Slice]:
    took = event.get("seconds")
    dur = int(took * 1e9) if isinstance(took, (int, float)) and 0 <= took < 1e9 else 0
    failed = {} if event.get("ok", True) else {"error": clean(event.get("message", ""))}
    yield Slice("engine calls", clean(event.get("name")), now - dur, dur, failed | _kept(event, ("step",)))


def _sync(event: dict[str, Any], now: int, offset: int) -> Iterator[Point]:
    version = _integer(event.get("version"))
    if event.get("ok", True) and version is not None:
        yield Point("version of weights sent", now, {"version": version})
    else:
        yield Point("weight sync failed", now, args={"message": clean(event.get("message", ""))})


def _weights(event: dict[str, Any], now: int, offset: int) -> Iterator[Point]:
    version = _integer(event.get("version"))
    if event.get("source") == "received" and version is not None:
        yield Point("version of weights held", now, {"version": version})


def _engine_stats(event: dict[str, Any], now: int, offset: int) -> Iterator[Point]:
    requests = {name: event[name] for name in ("running", "waiting") if isinstance(event.get(name), (int, float))}
    shares = {name: event[name] for name in ("kv_usage", "cache_hit_rate") if isinstance(event.get(name), float)}
    yield from (Point(name, now, values) for name, values in (("requests", requests), ("cache", shares)) if values)


def _step(event: dict[str, Any], now: int, offset: int) -> Iterator[Point]:
    yield Point(f"end of step {clean(event.get('step'))}", now)


def _engine_died(event: dict[str, Any], now: int, offset: int) -> Iterator[Point]:
    yield Point(f"engine died: {clean(event.get('message', ''))}", now)


def _close(event: dict[str, Any], now: int, offset: int) -> Iterator[Point]:
    if not event.get("ok", True):
        yield Point(f"ended: {clean(event.get('reason', ''))}", now)


_DRAWN: dict[str, Callable[[dict[str, Any], int, int], Iterator[Slice | Point]]] = {
    "span": _span,
    "collective": _span,
    "call": _call,
    "sync": _sync,
    "weights": _weights,
    "engine_stats": _engine_stats,
    "step": _step,
    "engine_died": _engine_died,
    "close": _close,
}


def _kept(event: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: clean(event[name]) for name in names if event.get(name) is not None}


def _integer(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 63 else None


def _stalls(seconds: set[int], side: str) -> Process:
    """Return slices where no process recorded anything for longer than STALL_S."""
    ordered = sorted(seconds)
    gaps = [(earlier, later) for earlier, later in pairwise(ordered) if later - earlier > STALL_S]
    process = Process(f"{side} stalls".strip())
    for begin, end in gaps:
        name = f"no event for about {end - begin} s"
        process.slices.append(Slice("phases", name, (begin + 1) * 1_000_000_000, (end - begin - 1) * 1_000_000_000))
    return process


def _bounded(processes: list[Process]) -> int:
    """Keep the longest slices and the first points, and return how many were left out."""
    total = sum(len(process.slices) + len(process.points) for process in processes)
    if sum(len(process.slices) for process in processes) > MOST_SLICES:
        _keep_longest(processes)
    if sum(len(process.points) for process in processes) > MOST_POINTS:
        for process in processes:
            process.points = process.points[: max(1, MOST_POINTS // len(processes))]
    return total - sum(len(process.slices) + len(process.points) for process in processes)


def _keep_longest(processes: list[Process]) -> None:
    """Keep MOST_SLICES slices: all that are longer than the shortest kept one, and as many of its length as fit."""
    durations = [slice_.dur_ns for process in processes for slice_ in process.slices]
    shortest = heapq.nlargest(MOST_SLICES, durations)[-1]
    ties = MOST_SLICES - sum(dur > shortest for dur in durations)
    for process in processes:
        kept = []
        for slice_ in process.slices:
            tie = slice_.dur_ns == shortest and ties > 0
            ties -= tie
            if tie or slice_.dur_ns > shortest:
                kept.append(slice_)
        process.slices = kept


def _moved(process: Process, by: int) -> Process:
    slices = [replace(slice_, start_ns=slice_.start_ns + by) for slice_ in process.slices]
    points = [replace(point, at_ns=point.at_ns + by) for point in process.points]
    return Process(process.name, slices, points)
