"""Checks of a recorded run that say whether faults would have shown in this scenario at all.

A model that never ends a sentence, lengths without spread, an idle prefix cache, or updates below the noise would
hide them.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from scenarios.engines import registry
from scenarios.lifted import HALF

FLOOR = 1e-6  # float32: log-probabilities of one tiny model under two engines differ by about this much
TOLERANCE = 1e-4  # the judge's cap for float32


@dataclass(frozen=True)
class SelfCheck:
    """One named requirement.

    `value`: what was measured. `hides`: the fault that could not show without it. `applies`: False where the run has
    no such thing, such as updates or a prefix cache.
    """

    name: str
    ok: bool
    value: float
    least: str  # the requirement: "at least 0.3", "more than 0"
    hides: str
    applies: bool = True
    unit: str = ""

    @property
    def summary(self) -> str:
        """Return what was measured, and what is needed for the fault to show."""
        unit = f" {self.unit}" if self.unit else ""
        return f"{self.name}: {self.value:.3g}{unit}; it takes {self.least}{unit} for {self.hides} to show"


def report(run: Any, *, floor: float = FLOOR, tolerance: float = TOLERANCE) -> list[SelfCheck]:
    """Check the recording `run` (a `probes.format.Run`).

    `floor`: what rounding alone does to a log-probability. `tolerance`: the mean difference up to which the proof of
    a weight sync passes. Both in nats.
    """
    finish: list[str] = []
    lengths: list[int] = []
    cached = 0
    for frame in run.frames(kind="rollout", role="rollout"):
        finish += frame.fields.get("finish") or []
        lengths += [len(row) for row in frame.arrays["output"].rows()] if "output" in frame.arrays else []
        cached += sum(frame.arrays["cached"].tolist()) if "cached" in frame.arrays else 0
    engines = {str(event.get("engine")) for event in run.events(kind="engine_info")}
    bare = {name for name, spec in registry.specs().items() if "prefix_caching" not in spec.engine_arguments}
    # What the proof of each sync would have measured with the old weights: the control of every proof that passed.
    stale = [float(event["proof_stale"]) for event in run.events(kind="sync") if "proof_stale" in event]
    spread = statistics.pstdev(lengths) / statistics.fmean(lengths) if lengths else 0.0
    cached_at_all = not engines or bool(engines - bare)
    return [
        _at_least("samples that end by themselves", _fraction(finish, "stop"), 0.3, "a lost or another end token"),
        _at_least("coefficient of variation of length", spread, 0.3, "a fault of padding or lengths"),
        _above("samples cut at the limit", _fraction(finish, "length"), 0.0, "a fault at the limit"),
        _above("tokens served from the prefix cache", float(cached), 0.0, "a stale cache", applies=cached_at_all),
        update_moves(run, floor=floor),
        _above(
            "smallest proof of weights that did not arrive", min(stale, default=0.0), tolerance,
            "weights that did not arrive", applies=_trains(run), unit="nats",
        ),
    ]  # fmt: skip


def update_moves(run: Any, *, floor: float = FLOOR) -> SelfCheck:
    """Check whether each update moves the log-probabilities so far that an engine with the weights before it shows.

    `floor`: of the engine that drew `run`, in nats.
    """
    # In half precision, the check `weights-in-use` measures itself whether updates of this size would have shown.
    is_half = run.manifest.get("scenario", {}).get("model", {}).get("dtype") in HALF
    return _at_least(
        "smallest log-probability move of an update", min(_shifts(run), default=0.0), 100 * floor, "stale weights",
        applies=_trains(run) and not is_half, unit="nats",
    )  # fmt: skip


def _shifts(run: Any) -> list[float]:
    steps = [event.get("metrics") or {} for event in run.events(kind="step")]
    return [float(metrics["update_logprob_shift"]) for metrics in steps if "update_logprob_shift" in metrics]


def _trains(run: Any) -> bool:
    return bool(run.manifest.get("scenario", {}).get("train", bool(_shifts(run))))


def _fraction(finish: Iterable[str], reason: str) -> float:
    reasons = list(finish)
    return reasons.count(reason) / len(reasons) if reasons else 0.0


def _at_least(name: str, value: float, least: float, hides: str, *, applies: bool = True, unit: str = "") -> SelfCheck:
    return SelfCheck(name, value >= least, value, f"at least {least:.3g}", hides, applies=applies, unit=unit)


def _above(name: str, value: float, bound: float, hides: str, *, applies: bool = True, unit: str = "") -> SelfCheck:
    return SelfCheck(name, value > bound, value, f"more than {bound:.3g}", hides, applies=applies, unit=unit)
