"""Systematic differences in half precision: a mean that rounding does not have, beside the largest difference.

One token may round by 0.06 nats, so a tolerance on single tokens lets a bias of that size pass. Rounding has mean zero
and a size that the learner's own shows. Tested over the run, each step, positions and cached samples:

- bias: the mean of Δ. Two normalised distributions that round independently have one of the order of mean Δ², for the
  tokens are drawn by one of them: E[log q − log p] under p is −KL(p‖q), about −Δ²/2, and drawing prefers what rounding
  raised by Δ²/T. That much is allowed, twice.
- size: the mean |Δ| of an engine from float32's log-probabilities, in units of the learner's own.

The error rate is that of all tests together; tokens are clustered by their prompt (`clusters`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from harness.parity.facts.clusters import Clusters, Mean
from harness.parity.facts.divergence import Kind
from harness.parity.facts.metrics import LABELS, POSITION_EDGES

FALSE_ALARM = 1e-3  # of all tests of a verdict together (Bonferroni)
POWER = 0.99  # with which the smallest effect that is stated is found
# Engines may round so many times as much as the learner. Measured on a CPU in bfloat16: vLLM 0.99, SGLang 0.99, the
# embedded engine 1.00.
ROUGHER = 2.0
ALLOWED_BIAS = 2.0  # times mean Δ² over T, see above
RESOLVED = 16 * 2.0**-23 * 20  # nats; log-probabilities are recorded, and by some engines computed, in float32
RUN = "the run"
_DELTA, _SQUARE, _SIZE, _ROUNDING, _ONE, _TWO = range(1, 7)  # columns of the sums


class Compared(Enum):
    """Two columns of log-probabilities whose means are compared, each with the divergence that its single tokens
    show, the one that its mean shows, and its words."""

    ENGINES = ("logprob", Kind.LOGPROB, Kind.ENGINE_DRIFT, "engine against engine")
    ENGINE = ("learner", Kind.ENGINE, Kind.DRIFT, "the {side}'s engine")  # against its learner
    TRAINER = ("trainer", None, Kind.TRAINER_DRIFT, "the {side}'s learner against float32")

    def __init__(self, label: str, single: Kind | None, drift: Kind, words: str) -> None:
        self.label = label
        self.single = single
        self.drift = drift
        self.words = words


class Means(NamedTuple):
    """One comparison of means, and the side that it is of."""

    compared: Compared
    side: str | None = None

    @property
    def label(self) -> str:
        return self.compared.label if self.side is None else f"{self.compared.label}:{self.side}"

    @property
    def words(self) -> str:
        return self.compared.words.format(side=self.side)


@dataclass(frozen=True)
class Tested:
    """One test. `bound`: what the statistic may be without any noise; `critical`: standard errors above it that chance
    does not give; in nats."""

    what: str  # "bias" or "size"
    where: str
    step: int
    mean: Mean
    bound: float
    critical: float
    reach: float  # standard errors beyond the bound at which an effect is found with `POWER`
    unit: float  # mean |Δ| of the learner's own rounding, or of the comparison
    values: tuple[float, float]  # mean log-probability of both

    @property
    def found(self) -> bool:
        excess = abs(self.mean.value) - self.bound if self.what == "bias" else self.mean.value
        return excess > 0 and excess > self.critical * self.mean.error

    @property
    def smallest(self) -> float:
        """The smallest effect that would have been found, nats."""
        return self.bound + self.reach * self.mean.error


@dataclass
class Drift:
    """The differences of one comparison, by cluster, in the run, its steps and its parts."""

    steps: dict[int, Clusters] = field(default_factory=dict)
    parts: dict[str, Clusters] = field(default_factory=dict)
    sized: bool = True  # was the learner's rounding known at every token?

    def add(
        self,
        step: int,
        cluster: np.ndarray,
        one: np.ndarray,
        two: np.ndarray,
        rounding: np.ndarray | None,
        position: np.ndarray,
        cached: np.ndarray | None,
    ) -> None:
        """One step's tokens, flat; Δ = two − one. `rounding`: |learner's rounding|, where it is known."""
        finite = np.isfinite(one) & np.isfinite(two)
        self.sized &= rounding is not None
        delta = two.astype(np.float64) - one
        size = np.zeros(len(delta)) if rounding is None else np.abs(rounding)
        columns = [delta, delta * delta, np.abs(delta), size, one.astype(np.float64), two.astype(np.float64)]
        self._add(self.steps, step, finite, cluster, columns)
        bucket = np.searchsorted(POSITION_EDGES, position, side="right")
        for at in np.unique(bucket):
            self._add(self.parts, f"positions {LABELS['position'][at]}", finite & (bucket == at), cluster, columns)
        for flag, name in enumerate(LABELS["cached"]) if cached is not None else ():
            self._add(self.parts, f"samples {name}", finite & (cached == flag), cluster, columns)

    @staticmethod
    def _add(
        into: dict[Any, Clusters], key: Any, chosen: np.ndarray, cluster: np.ndarray, columns: list[np.ndarray]
    ) -> None:
        if chosen.any():
            into.setdefault(key, Clusters()).add(cluster[chosen], *(one[chosen] for one in columns))

    def tables(self) -> Iterator[tuple[str, int, np.ndarray]]:
        """(where, step, sums by cluster): the run first."""
        if not self.steps:
            return
        run, first = Clusters(), min(self.steps)
        for one in self.steps.values():
            run.extend(one)
        yield RUN, first, run.table()
        for step, one in sorted(self.steps.items()):
            yield f"step {step}", step, one.table()
        if len(self.parts) > 1:
            for name, one in self.parts.items():
                yield name, first, one.table()


def tested(drifts: dict[Means, Drift], temperature: float) -> dict[Means, list[Tested]]:
    """Comparison -> its tests, the run's first. All of them share one error rate."""
    made: list[tuple[Means, str, str, int, np.ndarray]] = []
    for kind, drift in drifts.items():
        for where, step, table in drift.tables():
            made.append((kind, "bias", where, step, table))
            if drift.sized and table[:, _ROUNDING].any():
                made.append((kind, "size", where, step, table))
    found: dict[Means, list[Tested]] = {kind: [] for kind in drifts}
    for kind, what, where, step, table in made:
        found[kind].append(_test(what, where, step, table, FALSE_ALARM / len(made), temperature))
    return found


def _test(what: str, where: str, step: int, table: np.ndarray, error_rate: float, temperature: float) -> Tested:
    count = table[:, 0].sum()
    free = max(1, len(table) - 1)
    critical = float(stats.t.isf(error_rate / 2, free))
    reach = critical + float(stats.t.isf(1 - POWER, free))
    unit = float((table[:, _ROUNDING] if table[:, _ROUNDING].any() else table[:, _SIZE]).sum() / count)
    values = float(table[:, _ONE].sum() / count), float(table[:, _TWO].sum() / count)
    if what == "bias":
        square = float(table[:, _SQUARE].sum() / count)
        bound = max(RESOLVED, ALLOWED_BIAS * square / min(1.0, max(temperature, 1e-6)))
        mean = Mean.of(table, table[:, _DELTA])
    else:
        bound = ROUGHER * unit
        mean = Mean.of(table, table[:, _SIZE] - ROUGHER * table[:, _ROUNDING])
    return Tested(what, where, step, mean, bound, critical, reach, unit, values)
