"""The memory that each process of a run holds, step by step, and whether it grows.

A process leaks where its low-water mark rises step after step. Batches, garbage collection, buffers that are made once
and warm-up raise it too. But they do not do so in most steps, or no longer in the second half of the run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.parity.facts.probabilities import student_limit
from harness.recordings.store import Recording
from probes.format import mapping, number, whole
from reports.model import PhaseMemory

WHAT = {
    "rss": "resident memory",
    "cuda_allocated": "allocated CUDA memory",
    "cuda_reserved": "reserved CUDA memory",
    "dev_shm": "/dev/shm of its host",
}
MIB = 2**20  # bytes

# Chance of any false alarm in a recording whose processes all wander without a drift, the noise that most resembles a
# leak. Leaving out the largest rises lowers it: at most 0.2 % of 4,000 random walks of 16 to 200 steps.
ALPHA = 0.01
LEAST = 1.0 * MIB  # bytes a step that matter: in a thousand steps they make a GiB
WARM = 4  # one step in so many is warm-up: allocators, compiled kernels and caches fill up at first
BLOCKS = 12  # the other steps make 12 to 23 blocks of equal size
JUMPS = 2  # largest rises between blocks that are left out: a buffer that is made once is no leak
FEWEST = 16  # steps: BLOCKS of one step, and the warm-up


@dataclass(frozen=True)
class Held:
    """One series: `low` and `high` are the least and the most bytes that the process reported in each step."""

    role: str  # "actor", "rollout, VLLM::EngineCore"
    rank: int
    what: str  # a key of WHAT
    steps: np.ndarray
    low: np.ndarray
    high: np.ndarray

    @property
    def who(self) -> str:
        return f"{self.role}, rank {self.rank}"


@dataclass(frozen=True)
class Growth:
    """Bytes a step, with the least growth that would have been found in this series."""

    rate: float
    smallest: float
    grows: bool


def growth(process_series: Held, series: int) -> Growth | None:
    """Test whether one of `series` series grows linearly with the steps; None where it has too few steps.

    The test takes the rises between the low-water marks of successive blocks of steps, without the largest two. Their
    mean must be above zero (Student's t, which holds for noise about a level and for a random walk) and large enough to
    matter. The rises of the second half must be so too, and their mean at least half the median of the first half,
    since warm-up slows down.
    """
    if len(process_series.steps) < FEWEST:
        return None
    warm = len(process_series.steps) // WARM
    steps, low = process_series.steps[warm:].astype(float), process_series.low[warm:]
    size = len(steps) // BLOCKS
    blocks = len(steps) // size
    first = len(steps) - blocks * size  # steps that fill no block count as warm-up
    marks = low[first:].reshape(blocks, size).min(axis=1)
    centres = steps[first:].reshape(blocks, size).mean(axis=1)
    rises = np.diff(marks) / np.diff(centres)
    kept = np.sort(np.argsort(rises, kind="stable")[: len(rises) - JUMPS])
    half = len(rises) // 2
    rate, early, later = float(rises[kept].mean()), float(np.median(rises[:half])), rises[kept[kept >= half]]
    least = max(LEAST, _bound(later, ALPHA))
    smallest = max(least, _bound(rises[kept], ALPHA / series))
    return Growth(rate, smallest, rate >= smallest and float(later.mean()) >= max(least, early / 2))


def _bound(rises: np.ndarray, alpha: float) -> float:
    """Return what the mean of these rises exceeds by chance with probability `alpha`, if there is no growth."""
    return student_limit(alpha, len(rises) - 1) * float(rises.std(ddof=1)) / math.sqrt(len(rises))


def recorded(recording: Recording) -> list[Held]:
    """Return every series of a recording, process by process; [] where memory was not recorded."""
    all_series: list[Held] = []
    for journal, columns in recording.numbers("span", '"rss":', ("step", *WHAT)):
        role, rank = str(journal.opening.get("role")), whole(journal.opening.get("rank"))
        for what in WHAT:
            all_series += _process_series(role, rank, what, columns["step"], columns[what])
    for (_, _, role), calls in _calls(recording).items():
        steps = np.array([number(call.get("step")) for call in calls])
        for what in WHAT:
            values = np.array([number(call.get(what)) for call in calls])
            all_series += _process_series(role, whole(calls[0].get("rank")), what, steps, values)
    return all_series


def _calls(recording: Recording) -> dict[tuple[str, str, str], list[dict[str, Any]]]:
    """Return (file, pid, role) of each process of an engine -> its memory at the engine's calls."""
    calls: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for call in recording.all("call", mention="rss"):
        role = str(call.get("role"))
        calls.setdefault((str(call["file"]), "", role), []).append(call)
        listed = call.get("processes")
        for process in map(mapping, listed if isinstance(listed, list) else []):
            title = process.get("title") or "a process of the engine"
            key = (str(call["file"]), str(process.get("pid")), f"{role}, {title}")
            calls.setdefault(key, []).append({**process, **{name: call.get(name) for name in ("name", "step", "rank")}})
    return calls


def by_phase(recording: Recording) -> list[PhaseMemory]:
    """Return what each role holds in each phase of the steps; [] where memory was not recorded."""
    # (role, phase) -> field of PhaseMemory -> values
    values_by_phase: dict[tuple[str, str], dict[str, list[np.ndarray]]] = {}
    keys = ("step", *WHAT, *(f"{what}_before" for what in _CHANGES))
    for journal, columns in recording.numbers("span", '"rss":', keys):
        columns |= {f"{what}_change": columns[what] - columns[f"{what}_before"] for what in _CHANGES}
        _tell(values_by_phase, str(journal.opening.get("role")), columns)
    for (_, _, role), calls in _calls(recording).items():
        columns = {key: np.array([number(call.get(key)) for call in calls]) for key in ("step", *WHAT)}
        columns["name"] = np.array([str(call.get("name")) for call in calls], object)
        for what in _CHANGES:  # an engine works only in its calls
            columns[f"{what}_change"] = np.diff(columns[what], prepend=np.nan)
        _tell(values_by_phase, role, columns)
    for stats in recording.all("engine_stats", mention="kv_usage"):
        of_its_call = values_by_phase.get((str(stats.get("role")), "generate"))
        if of_its_call is not None:
            of_its_call.setdefault("kv_usage", []).append(np.array([number(stats.get("kv_usage"))]))
    return [PhaseMemory(role, phase, **_figures(parts)) for (role, phase), parts in values_by_phase.items()]


def _figures(parts_by_field: Mapping[str, list[np.ndarray]]) -> dict[str, float]:
    """Return field of PhaseMemory -> the median of a change, the largest of other values; without those that no value
    was recorded of.
    """
    figures: dict[str, float] = {}
    for what, parts in parts_by_field.items():
        is_change, values = what.endswith("_change"), np.concatenate(parts)
        values = values[np.isfinite(values) & (is_change | (values >= 0))]
        if len(values):
            figures[what] = float(np.median(values) if is_change else values.max())
    return figures


_CHANGES = ("rss", "cuda_reserved")  # measures whose change over a phase is reported too


def _tell(
    values_by_phase: dict[tuple[str, str], dict[str, list[np.ndarray]]], role: str, columns: dict[str, np.ndarray]
) -> None:
    within = columns["step"] >= 0
    for phase in dict.fromkeys(map(str, columns["name"][within])):
        at = within & (columns["name"] == phase)
        for what in (*WHAT, *(f"{what}_change" for what in _CHANGES)):
            values_by_phase.setdefault((role, phase), {}).setdefault(what, []).append(columns[what][at])


def _process_series(role: str, rank: int, what: str, steps: np.ndarray, values: np.ndarray) -> list[Held]:
    """Return a series of the least and the largest value of each step; none without any number."""
    usable = np.isfinite(values) & (values >= 0) & (steps >= 0)
    if not usable.any():
        return []
    steps, values = steps[usable].astype(np.int64), values[usable]
    order = np.lexsort((values, steps))
    steps, values = steps[order], values[order]
    begins = np.flatnonzero(np.r_[True, steps[1:] != steps[:-1]])
    return [Held(role, rank, what, steps[begins], values[begins], values[np.r_[begins[1:], len(steps)] - 1])]


def largest(series: Iterable[Held], steps: list[int]) -> dict[str, list[float]]:
    """Return role -> resident MiB of its largest process in each of these steps; NaN where none was recorded."""
    by_role: dict[str, np.ndarray] = {}
    for process_series in series:
        if process_series.what != "rss":
            continue
        at = dict(zip(process_series.steps.tolist(), (process_series.high / MIB).tolist(), strict=True))
        of_process = np.array([at.get(step, np.nan) for step in steps], np.float64)
        by_role[process_series.role] = np.fmax(by_role.get(process_series.role, np.nan), of_process)
    return {role: values.tolist() for role, values in by_role.items()}
