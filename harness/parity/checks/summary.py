"""The summary of one run for a report: rows that should agree, rows that were measured, and series by step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from harness.parity.facts.evidence import Evidence, Side
from harness.parity.subjects.engines import observed_memory
from harness.parity.subjects.recording.checks import hit_rate
from harness.parity.subjects.recording.observed_confounders import differences, flatten
from harness.parity.subjects.sampling.observed import engine_infos
from harness.recordings.records.engine_info import NOTHING_REPORTED
from harness.recordings.store import Recording
from probes.format import number
from reports.model import RunSummary

NAN = float("nan")  # marks a step without a number
# Series -> metric of the trainer's `step` event.
_METRICS = {
    "reward": "reward_mean",
    "kl": "kl_mean",
    "length_mean": "length_mean",
    "length_max": "length_max",
    "policy_loss": "policy_loss",
    "value_loss": "value_loss",
}
STEP_SPANS = ("step", "rollout", "experience", "train", "sync")
_SPANS = {
    "rollout_seconds": "rollout",
    "experience_seconds": "experience",
    "train_seconds": "train",
    "sync_seconds": "sync",
}


def summary(e: Evidence, side: Side) -> RunSummary:
    run = side.recording
    steps = sorted({*run.steps("rollout"), *(record.step for record in run.records.steps if record.step is not None)})
    series = _series(side, steps)
    return RunSummary(
        side=side.name,
        backend=run.records.manifest.backend or "",
        path=str(run.path),
        rows=_rows(e, side, series),
        series=series,
        measured=_measured(e, side, series),
        memory=observed_memory.by_phase(run),
    )


def step_seconds(side: Side) -> dict[int, float]:
    """Return the seconds of each step: its `step` span, else the trainer's metric, else the sum of its phases."""
    spans = spans_by_step(side.recording)
    whole_steps = {step: seconds for (name, step), seconds in spans.items() if name == "step" and step >= 0}
    return dict(sorted((whole_steps or _metric_seconds(side.recording) or _phase_seconds(spans)).items()))


def _metric_seconds(recording: Recording) -> dict[int, float]:
    """Return the seconds of each step by the trainer's metrics, where they are finite numbers."""
    recorded = {record.step: record.number("seconds") for record in recording.records.steps}
    return {step: seconds for step, seconds in recorded.items() if step is not None and np.isfinite(seconds)}


def _phase_seconds(spans: dict[tuple[str, int], float]) -> dict[int, float]:
    """Return the seconds of all phases of each step together."""
    seconds_by_step: dict[int, float] = {}
    for (name, step), seconds in spans.items():
        if name in _SPANS.values() and step >= 0:
            seconds_by_step[step] = seconds_by_step.get(step, 0.0) + seconds
    return seconds_by_step


_SPANS_BY_RECORDING: WeakKeyDictionary[Recording, dict[tuple[str, int], float]] = WeakKeyDictionary()


def spans_by_step(recording: Recording) -> dict[tuple[str, int], float]:
    """Return `_spans_by_step`, made once for a recording, since several checks need it."""
    if recording not in _SPANS_BY_RECORDING:
        _SPANS_BY_RECORDING[recording] = _spans_by_step(recording)
    return _SPANS_BY_RECORDING[recording]


def _spans_by_step(recording: Recording) -> dict[tuple[str, int], float]:
    """Return (span name, step) -> seconds of the longest process.

    Of several spans of one process it is the time that they cover together, since spans of an asynchronous process
    overlap: verl waits for all prompts of a step at once, each in a span of its own.
    """
    spans = recording.spans(STEP_SPANS)
    order = np.argsort(spans.start, kind="stable")
    columns = (spans.name, spans.step, spans.process, spans.start, spans.seconds)
    rows = zip(*(column[order].tolist() for column in columns), strict=True)
    covered: dict[tuple[str, int, str], float] = {}  # the end of what its spans cover so far
    lasted: dict[tuple[str, int, str], float] = {}
    for name, step, process, start, seconds in rows:  # `max(known, NaN)` is the known value
        key = name, step, process
        before = covered.get(key, -np.inf)
        covered[key] = max(before, start + seconds)
        lasted[key] = lasted.get(key, 0.0) + max(0.0, seconds - max(0.0, before - start))
    longest: dict[tuple[str, int], float] = {}
    for (name, step, _), seconds in sorted(lasted.items()):
        longest[name, step] = max(longest.get((name, step), 0.0), seconds)
    return longest


# Engine parameters that have a row, as the engine resolved them.
_ENGINE_ROWS = (
    "dtype",
    "max_model_len",
    "prefix_caching",
    "enforce_eager",
    "max_num_seqs",
    "kv_cache_tokens",
    "attention_backend",
    "device",
)
# Settings that have a row under another name.
_RENAMED_ROWS = ("name", "path", "mode", "train batch size")


def _series(side: Side, steps: list[int]) -> dict[str, list[float]]:
    """Return name -> a number for each of these steps, NaN where it was not recorded. A series without any number is
    left out.
    """
    run = side.recording
    by_step: dict[str, dict[int, float]] = {"seconds": step_seconds(side)}
    records = [(record.step, record) for record in run.records.steps if record.step is not None]
    for name, metric in _METRICS.items():
        by_step[name] = {step: record.number(metric) for step, record in records}
    spans = spans_by_step(run)
    for name, span in _SPANS.items():
        by_step[name] = {step: spans.get((span, step), NAN) for step in steps}
    by_step["padded_tokens"], by_step["real_tokens"] = _batch_tokens(run)
    series = {name: [values.get(step, NAN) for step in steps] for name, values in by_step.items()}
    if np.isnan(series["length_mean"]).all():  # rollouts without training have no `step` metrics
        series |= _lengths(run, steps)
    for role, values in observed_memory.largest(side.memory, steps).items():
        series[f"memory of {role}, MiB"] = values
    recorded = {name: values for name, values in series.items() if not np.isnan(values).all()}
    return {"step": [float(step) for step in steps], **recorded}


def _batch_tokens(run: Recording) -> tuple[dict[int, float], dict[int, float]]:
    """Return step -> tokens of its experience on all ranks, with and without padding."""
    padded: dict[int, float] = {}
    real: dict[int, float] = {}
    for event in run.shapes_of("experience"):
        if isinstance(event.get("step"), int):
            step = event["step"]
            padded[step] = padded.get(step, 0.0) + number(event.get("padded_tokens"), 0.0)
            real[step] = real.get(step, 0.0) + number(event.get("real_tokens"), 0.0)
    return padded, real


def _lengths(run: Recording, steps: list[int]) -> dict[str, list[float]]:
    """Return the mean and the largest length of each step's responses, as its rollouts have them."""
    means: list[float] = []
    largest: list[float] = []
    for step in steps:
        output = run.rows("rollout", step, "output")
        lengths = np.array([NAN]) if output is None or not len(output) else output.lengths
        means.append(float(lengths.mean()))
        largest.append(float(lengths.max()))
    return {"length_mean": means, "length_max": largest}


def _rows(e: Evidence, side: Side, series: dict[str, list[float]]) -> dict[str, Any]:
    run, records, settings = side.recording, side.recording.records, side.recording.records.settings
    info = next(iter(engine_infos(side, e.mode)), NOTHING_REPORTED)
    steps = [record.metrics for record in records.steps]
    last_actor = records.updates[-1].digests.get("actor", "") if records.updates else ""
    rows = {
        "scenario": settings.name,
        "model": settings.model.path,
        "mode": mode_name(e),
        "seed": settings.seed,
        "engine": info.engine,
        "engine version": info.version,
        **{name.replace("_", " "): info.resolved.parameters.get(name) for name in _ENGINE_ROWS},
        "temperature": records.sampling_in(e.mode).requested.get("temperature"),
        "train batch, samples": settings.learner.train_batch_size,
        "steps": len(run.steps("rollout")),
        "samples": side.counts.samples,
        "tokens": side.counts.tokens,
        "reward, last step": _last(series, "reward"),
        "KL, last step": _last(series, "kl"),
        "length, mean": _mean(series, "length_mean"),
        "length, longest": max((v for v in series.get("length_max", []) if v == v), default=None),
        "ended by themselves": _mean_of(steps, "stopped_fraction"),
        "truncated": _mean_of(steps, "truncated_fraction"),
        "cache hit rate": _number_or_none(hit_rate(side)),
        "learner after the last update": last_actor[:12] or None,
    }
    rows = {title: value for title, value in rows.items() if value is not None}
    # Settings that differ and have no row of their own, such as engine.tensor_parallel.
    values, titles = flatten(run.scenario), {*rows, *_RENAMED_ROWS}
    for key in differences(*(flatten(each_side.recording.scenario) for each_side in (e.baseline, e.candidate))):
        if key.rpartition(".")[2].replace("_", " ") not in titles:
            rows[key] = values.get(key)
    return rows


def _measured(e: Evidence, side: Side, series: dict[str, list[float]]) -> dict[str, Any]:
    """Return what differs between any two runs without meaning a change: times, noise."""
    rollout = [v for v in series.get("rollout_seconds", []) if v == v]
    syncs = [sync.seconds for sync in side.recording.records.syncs]
    engine_starts = [_number_or_none(info.start_seconds) for info in engine_infos(side, e.mode)]
    rows = {
        "seconds per step": _mean(series, "seconds"),
        "rollout, seconds per step": _mean(series, "rollout_seconds"),
        "train, seconds per step": _mean(series, "train_seconds"),
        "rollout tokens per second": side.counts.tokens / sum(rollout) if rollout and sum(rollout) else None,
        "weight sync, s": _number_or_none(float(np.nanmean(syncs))) if any(v == v for v in syncs) else None,
        "start of the engine, s": engine_starts[0] if engine_starts else None,
        "floor, nats": _number_or_none(side.floor.largest),
        "against its learner, max |Δ|": side.to_learner.largest[0] if side.to_learner.tokens else None,
        "probes, share of a step": _probe_share(side),
        **{f"largest {name}": np.nanmax(values) for name, values in series.items() if name.startswith("memory of ")},
    }
    return {title: value for title, value in rows.items() if value is not None}


def _probe_share(side: Side) -> float | None:
    """Return the share of time that the costliest process spent in its recorder; None where there is no second step.

    Only the steps after the first count, since starting belongs to no step.
    """
    processes: dict[str, list[tuple[int, int]]] = {}
    for event in side.recording.all("probe_cost"):
        if isinstance(event.get("self_ns"), int) and isinstance(event.get("step"), int):
            processes.setdefault(str(event.get("file")), []).append((event["step"], event["self_ns"]))
    lasted, shares = step_seconds(side), list[float]()
    for costs in map(sorted, processes.values()):
        # `self_ns` counts up over the whole process, so the first step's value is what starting has cost.
        seconds = sum(lasted.get(step, 0.0) for step, _ in costs[1:])
        if seconds:
            shares.append((costs[-1][1] - costs[0][1]) / 1e9 / seconds)
    return max(shares, default=None)


def mode_name(e: Evidence) -> str:
    """Return such as `coupled, guided` or `greedy, free, rollouts only`."""
    words = [e.mode]
    if e.guided:
        words.append("guided")
    elif e.mode in ("coupled", "greedy"):
        words.append("free")
    elif e.seeded:
        words.append("same sampler and seeds")
    return ", ".join(words if e.train else [*words, "rollouts only"])


def _number_or_none(value: float) -> float | None:
    return value if np.isfinite(value) else None


def _last(series: dict[str, list[float]], name: str) -> float | None:
    return next((value for value in reversed(series.get(name, [])) if value == value), None)


def _mean(series: dict[str, list[float]], name: str) -> float | None:
    values = [value for value in series.get(name, []) if value == value]
    return float(np.mean(values)) if values else None


def _mean_of(steps: list[Mapping[str, Any]], key: str) -> float | None:
    values = [v for v in (number(metrics.get(key)) for metrics in steps) if v == v]
    return float(np.mean(values)) if values else None
