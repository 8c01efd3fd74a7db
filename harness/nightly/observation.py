"""The result of one run of a cell, in the few facts by which nights are compared. Built from its verdict and
recordings.
"""

from __future__ import annotations

import contextlib
import json
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from probes import limits
from probes.format import SIDES, number
from probes.lines import without_none
from reports.model import BETWEEN, OPEN, Parity, Verdict
from reports.text import flatten

# Taken from every group of `parity.metrics`: the largest difference, the mean one, the signed mean, and the metrics
# common in the literature.
METRICS = ("max_delta_logprob", "mean_delta_logprob", "k1", "k3", "ess", "tokens")
COUNTS = ("steps", "samples", "native_samples", "compared_tokens", "benign_flips", "flips_beyond_margin")
NATIVE = (
    "length",
    "surprisal",
    "finish",
    "reward",
)  # `native: NAME` is the difference between the means of the native stages
PHASE = "_seconds"  # the suffix of a run's time series, such as rollout_seconds


@dataclass(frozen=True)
class Facts:
    """Facts that rarely change between nights; a history stores equal ones once.

    checks: name -> state.
    findings: name -> severity.
    versions: package -> version, as recorded.
    settings: name -> value, as recorded.
    """

    checks: Mapping[str, str] = field(default_factory=dict)
    findings: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Observation:
    """One run of a cell.

    verdict, exit_code, reason, causes: those of its verdict.
    metrics: key -> value; see `metric`.
    phases: median seconds per step, by side and phase.
    facts: what rarely changes.
    seconds: the duration of the run.
    recording: the folder of its recordings.
    reproduce: the command that repeats it.
    """

    verdict: str
    exit_code: int
    reason: str
    causes: tuple[str, ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)
    phases: Mapping[str, float] = field(default_factory=dict)
    facts: Facts = field(default_factory=Facts)
    seconds: float = 0.0
    recording: str = ""
    reproduce: str = ""

    @property
    def error(self) -> bool:
        return self.verdict == "ERROR"

    @property
    def tested(self) -> frozenset[str]:
        return frozenset(name for name, state in self.facts.checks.items() if state not in OPEN)


def metric(group: str, name: str) -> str:
    """Return the key of a metric. `group` is one of `parity.metrics`, or empty for metrics between the engines."""
    return f"{group}: {name}" if group else name


def group_and_name(key: str) -> tuple[str, str]:
    """Split a key of `metric` into the group and the name."""
    group, _, name = key.rpartition(": ")
    return group, name


def failed(reason: str, *, seconds: float = 0.0, recording: str = "") -> Observation:
    """Return the observation of a run that gave no verdict."""
    return Observation("ERROR", 2, reason, seconds=seconds, recording=recording)


def observed(verdict: Verdict, folder: Path, *, seconds: float = 0.0) -> Observation:
    """Return the observation of a verdict whose recordings are in `folder`."""
    body = verdict.parity
    counts = {name: _count(verdict.coverage[name]) for name in COUNTS if name in verdict.coverage}
    if body is not None and (first_draw := _first_draw(body)):
        counts["native_samples"] = first_draw
    metrics, phases, checks = counts, dict[str, float](), dict[str, str]()
    if body is not None:
        metrics, phases = counts | _metrics(body), _phases(body)
        checks = {check.name: check.state for check in body.checks}
    return Observation(
        verdict.verdict,
        verdict.exit_code,
        "; ".join(filter(None, (verdict.reserved, verdict.reason))),
        causes=tuple(sorted(cause.name for cause in verdict.causes)),
        metrics=metrics,
        phases=phases,
        facts=Facts(
            checks=checks,
            findings={finding.name: finding.severity for finding in verdict.findings},
            versions=_versions(folder),
            settings=_settings(folder),
        ),
        seconds=seconds,
        recording=str(folder),
        reproduce=verdict.reproduce,
    )


def of_suite(result: Mapping[str, Any], folder: Path, *, seconds: float = 0.0) -> Observation:
    """Return the observation of a suite of planted faults, with a check for each fault.

    `result` is the output of `harness faults run --format json`.
    """
    score, outcomes = result["score"], result["outcomes"]
    checks = {
        outcome.get("label", outcome["name"]): "ruled out" if outcome["right"] else "confirmed" for outcome in outcomes
    }
    wrong = sorted(name for name, state in checks.items() if state == "confirmed")
    passed = bool(checks) and bool(score.get("passed", not wrong))  # the parity suite passes with a few misses
    return Observation(
        "PASSED" if passed else "FAILED",
        0 if passed else 1,
        str(score["line"]),
        causes=tuple(f"fault {name}" for name in wrong),
        facts=Facts(checks=checks),
        seconds=seconds,
        recording=str(folder),
    )


def _first_draw(body: Parity) -> float:
    """Return the native samples of both sides in their first draw: how many draws a decision needs is random."""
    looks = [look for check in body.checks if check.name == "native" for look in check.details.get("looks", ())]
    return _count(looks[0]["samples"]) if looks else 0.0


def _count(value: Any) -> float:
    """Return a number, or the sum of the numbers of both sides."""
    return sum(map(number, value)) if isinstance(value, list) else number(value)


def _metrics(body: Parity) -> dict[str, float]:
    """Return the metrics by key. `cap` is the largest noise floor that the judge accepts."""
    values = {"cap": number(body.floor.get("cap"))}
    for group, metrics in body.metrics.items():
        if isinstance(metrics, dict):
            group = "" if group == BETWEEN else group
            values |= {metric(group, name): number(metrics[name]) for name in METRICS if name in metrics}
    native: Mapping[str, Any] = next(
        (check.details.get("quantities", {}) for check in body.checks if check.name == "native"), {}
    )
    return values | {
        metric("native", name): abs(number(native[name]["difference"])) for name in NATIVE if name in native
    }


def _phases(body: Parity) -> dict[str, float]:
    """Return the median seconds per step of each phase. The first step is a warm-up and is left out where there are
    others.
    """
    medians = {}
    for run in body.runs:
        for name, series in run.series.items():
            if name.endswith(PHASE) and (values := [number(value) for value in series[1:] or series]):
                medians[f"{run.side} {name.removesuffix(PHASE)}"] = statistics.median(values)
    return medians


def _manifests(folder: Path) -> dict[str, dict[str, Any]]:
    """Return `run.json` by side. The judge reports a recording without one."""
    manifests = {}
    for side in SIDES:
        with contextlib.suppress(OSError, ValueError):
            manifests[side] = json.loads(limits.read_text(folder / side / "run.json"))
    return manifests


def _versions(folder: Path) -> dict[str, str]:
    """Return the package versions by location: each side's engine, and the learner, whose environment the sides
    share.
    """
    versions: dict[str, str] = {}
    for side, manifest in _manifests(folder).items():
        environment = manifest.get("environment") or {}
        for name in ("version", "torch", "python_version"):
            if value := environment.get(name):
                label = {"version": environment.get("engine", "engine"), "python_version": "python"}.get(name, name)
                versions[f"{side} engine: {label}"] = str(value)
        for journal in sorted((folder / side / "events").glob("*.jsonl")):
            role = journal.name.split("-")[0]
            with contextlib.suppress(OSError, ValueError), journal.open(encoding="utf-8") as lines:
                packages = json.loads(next(lines, "{}")).get("packages") or {}
                where = f"{side} engine" if role == "rollout" else "learner"
                versions |= {f"{where}: {name}": str(version) for name, version in packages.items()}
    return versions


def _settings(folder: Path) -> dict[str, str]:
    """Return the scenario's settings. A setting that differs between the sides appears once per side."""
    settings_by_side: dict[str, dict[str, str]] = {}
    for side, manifest in _manifests(folder).items():
        mapping = without_none(mapping=manifest.get("mapping") or None)
        groups = flatten({"scenario": manifest.get("scenario") or {}, **mapping})
        settings_by_side[side] = {
            f"{group}.{name}".removeprefix("scenario / "): json.dumps(value) for group, name, value in groups
        }
    base, candidate = settings_by_side.get("baseline", {}), settings_by_side.get("candidate", {})
    shared = {name: value for name, value in base.items() if candidate.get(name, value) == value}
    apart = {f"{name} ({side})": value for side, values in settings_by_side.items() for name, value in values.items()
             if name not in shared}  # fmt: skip
    return {name.removeprefix("scenario."): value for name, value in (shared | apart).items()}
