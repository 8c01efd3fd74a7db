"""Systematic differences: tests of a mean difference, which rounding does not cause.

`observed_drifts` feeds these tests. A mean that they find is a divergence of a `DRIFT` kind, and the check `systematic`
reports it.

A tolerance on single tokens lets a bias of its own size pass. In bfloat16 that is 0.05 nats, since one token may round
by 0.06; in float32 it is 3e-5, where a token rounds by 2e-7 on average. Two means are tested over the run, each step,
ranges of positions, and cached samples:

- bias: the mean of Δ. The tokens are drawn by one of two normalised distributions p and q. So E[log q − log p] under p
  is −KL(p‖q), about −Δ²/2, whatever the kernels do: errors of single tokens, however large, have no mean of the first
  order. A draw prefers tokens that rounding raised, by Δ²/T. Allowed is twice mean Δ²/T, and at least what the numbers
  resolve, which in float32 is the mean error of rounding one number of the learner's scale.
- size: the mean |Δ|. In half precision it is the engine's distance from float32's log-probabilities, in units of the
  learner's own distance. In float32 it is each comparison's, in units of the floor: the mean difference of the engines
  from themselves, and at least the mean error of one rounding, since a floor can be exactly 0 where other kernels are
  2e-7 away.

All tests together share one error rate. Tokens are clustered by their prompt (`observed_clusters`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

import numpy as np

from harness.parity.facts.divergence import Kind
from harness.parity.facts.probabilities import student_limit
from harness.parity.subjects.log_probabilities.observed_clusters import Clusters, Mean
from harness.parity.subjects.log_probabilities.observed_metrics import LABELS
from harness.parity.subjects.log_probabilities.observed_pairs import LogprobPairs
from harness.parity.subjects.precision.observed_floor import EPSILON, HEADROOM, LARGEST_SCALE, RESOLUTION, Tolerance

FALSE_ALARM = 1e-3  # probability of a false alarm in all tests of a check together (Bonferroni)
POWER = 0.99  # probability of finding the smallest effect that is stated
# Times the learner's rounding that an engine may round by. Measured on a CPU in bfloat16: vLLM 0.99, SGLang 0.99, the
# embedded engine 1.00.
ROUGHER = 2.0
ALLOWED_BIAS = 2.0  # times mean Δ²/T, and times one rounding in float32, see above
# Nats. Log-probabilities are recorded in float32, and some engines compute them in it.
RESOLVED = RESOLUTION * EPSILON * LARGEST_SCALE
# Floors that the mean |Δ| of other kernels may reach, the same factor as for the largest (`observed_floor.HEADROOM`).
# Measured in float32 on a CPU, vLLM and SGLang against each other and their learners, over runs, steps, positions and
# cached samples of 11 sound pairs: 0.5 to 1.9 floors. Mean Δ was at most 7.6e-8 nats, where the least that was allowed
# was 2.4e-7.
APART = HEADROOM
RUN = "the run"
_DELTA, _SQUARE, _SIZE, _ROUNDING, _ONE, _TWO = range(1, 7)  # columns of the sums


class Compared(Enum):
    """Two columns of log-probabilities whose means are compared.

    Each member has a label, the divergence of its single tokens, the divergence of its mean, and its words.
    """

    ENGINES = ("logprob", Kind.LOGPROB, Kind.ENGINE_DRIFT, "engine against engine")
    ENGINE = ("learner", Kind.ENGINE, Kind.DRIFT, "the {side}'s engine")  # against its learner
    TRAINER = ("trainer", None, Kind.TRAINER_DRIFT, "the {side}'s learner against float32")

    def __init__(self, label: str, single: Kind | None, drift: Kind, words: str) -> None:
        self.label = label
        self.single = single
        self.drift = drift
        self.words = words


class Means(NamedTuple):
    """One comparison of means, with its side if it has one."""

    compared: Compared
    side: str | None = None

    @property
    def label(self) -> str:
        return self.compared.label if self.side is None else f"{self.compared.label}:{self.side}"

    @property
    def words(self) -> str:
        return self.compared.words.format(side=self.side)


@dataclass(frozen=True)
class Null:
    """What the means of a sound pair may be.

    `resolved`: a bias that numbers of this type may have, nats. `floor`: the unit of mean |Δ| in float32, nats; NaN
    where no floor was measured; None in half precision, where the unit is the learner's rounding.
    """

    temperature: float
    resolved: float
    floor: float | None

    @staticmethod
    def of(tolerance: Tolerance, mean_floor: float) -> Null:
        if tolerance.half:
            return Null(tolerance.temperature, RESOLVED, None)
        # The spacing of float32 at the learner's scale, over 4: the mean error of rounding to the nearest.
        one_rounding = tolerance.resolution / RESOLUTION / 4
        floor = min(max(mean_floor, one_rounding), tolerance.cap / APART)
        if np.isnan(mean_floor):
            return Null(tolerance.temperature, ALLOWED_BIAS * one_rounding, mean_floor)
        return Null(tolerance.temperature, max(ALLOWED_BIAS * one_rounding, floor), floor)


@dataclass(frozen=True)
class Tested:
    """One test.

    `bound`: what the statistic may be without any noise, nats. `critical`: standard errors above it that chance does
    not give.
    """

    what: str  # "bias" or "size"
    where: str
    step: int
    mean: Mean
    bound: float
    critical: float
    reach: float  # standard errors beyond the bound at which an effect is found with probability `POWER`
    unit: float  # mean |Δ| of the learner's own rounding, of the floor, or of the comparison
    unit_of: str  # what `unit` is, in words
    values: tuple[float, float]  # mean log-probability of both columns

    @property
    def found(self) -> bool:
        excess = abs(self.mean.value) - self.bound if self.what == "bias" else self.mean.value
        return excess > 0 and excess > self.critical * self.mean.error

    @property
    def smallest(self) -> float:
        """Return the smallest effect that would have been found, nats."""
        return self.bound + self.reach * self.mean.error


@dataclass
class Drift:
    """The differences of one comparison by cluster: over the run, its steps and its parts."""

    steps: dict[int, Clusters] = field(default_factory=dict)
    parts: dict[str, Clusters] = field(default_factory=dict)
    sized: bool = True  # whether the learner's rounding was known at every token

    def add(
        self,
        step: int,
        cluster: np.ndarray,
        pairs: LogprobPairs,
        rounding: np.ndarray | None = None,
        *,
        backwards: bool = False,
    ) -> None:
        """Add one step's tokens.

        `cluster`: a key for each row. `rounding`: |learner's rounding|, flat, where it is known. `backwards`: Δ is
        first − second.
        """
        self.sized &= rounding is not None
        delta, first, second = pairs.delta_sums, pairs.cell_sums(pairs.first), pairs.cell_sums(pairs.second)
        if backwards:
            delta, first, second = -delta, second, first
        size = np.zeros(len(delta)) if rounding is None else pairs.cell_sums(np.abs(rounding))
        square = pairs.cell_sums(pairs.delta * pairs.delta)
        columns = [pairs.tokens, delta, square, pairs.size_sums, size, first, second]
        keys, place = np.unique(cluster, return_inverse=True)
        cells = pairs.cells
        by_position = _summed(len(LABELS["position"]), cells.bucket, len(keys), place[cells.row], columns)
        _add_sums(self.steps, step, keys, _summed(1, 0, len(keys), place[cells.row], columns)[0])
        for label, rows in zip(LABELS["position"], by_position, strict=True):
            _add_sums(self.parts, f"positions {label}", keys, rows)
        if pairs.cached is not None:
            cached = (pairs.cached > 0).astype(np.intp)[cells.row]
            by_cached = _summed(2, cached, len(keys), place[cells.row], columns)
            for label, rows in zip(LABELS["cached"], by_cached, strict=True):
                _add_sums(self.parts, f"samples {label}", keys, rows)

    def tables(self) -> Iterator[tuple[str, int, np.ndarray]]:
        """Yield (where, step, sums by cluster), the run first."""
        if not self.steps:
            return
        run, first = Clusters(), min(self.steps)
        for clusters in self.steps.values():
            run.extend(clusters)
        yield RUN, first, run.table()
        for step, step_clusters in sorted(self.steps.items()):
            yield f"step {step}", step, step_clusters.table()
        if len(self.parts) > 1:
            for name, part_clusters in self.parts.items():
                yield name, first, part_clusters.table()


def _summed(
    parts: int, part: np.ndarray | int, clusters: int, cluster: np.ndarray, columns: list[np.ndarray]
) -> np.ndarray:
    """Return [part, cluster, column] sums of columns with a value for each cell. `part`, `cluster`: those of each
    cell.
    """
    place = part * clusters + cluster
    sums = [np.bincount(place, weights=column, minlength=parts * clusters) for column in columns]
    return np.stack(sums, axis=1).reshape(parts, clusters, len(columns))


def _add_sums(tables: dict[Any, Clusters], name: Any, keys: np.ndarray, rows: np.ndarray) -> None:
    """Add rows to the table of this name, which is created only where tokens were compared."""
    if rows[:, 0].any():
        tables.setdefault(name, Clusters()).add_sums(keys, rows)


def tested(drifts: dict[Means, Drift], null: Null) -> dict[Means, list[Tested]]:
    """Return the tests of each comparison, that of the run first. All of them share one error rate."""
    # Count all tests first: the error rate is divided by their number (Bonferroni).
    made: list[tuple[Means, str, str, int, np.ndarray]] = []
    for kind, drift in drifts.items():
        for where, step, table in drift.tables():
            made.append((kind, "bias", where, step, table))
            rounding = drift.sized and table[:, _ROUNDING].any()
            if rounding if null.floor is None else np.isfinite(null.floor):
                made.append((kind, "size", where, step, table))
    results: dict[Means, list[Tested]] = {kind: [] for kind in drifts}
    for kind, what, where, step, table in made:
        results[kind].append(_test(what, where, step, table, FALSE_ALARM / len(made), null))
    return results


def _test(what: str, where: str, step: int, table: np.ndarray, error_rate: float, null: Null) -> Tested:
    tokens = table[:, 0]
    count = tokens.sum()
    free = max(1, len(table) - 1)
    # Tokens of a prompt depend on each other, so clusters count, by Student's t. Each test is two-sided.
    critical = student_limit(error_rate / 2, free)
    reach = critical + student_limit(1 - POWER, free)
    rounding = bool(table[:, _ROUNDING].any())
    unit = float(table[:, _ROUNDING if rounding else _SIZE].sum() / count)
    unit_of = "the learner's own rounding" if rounding else "mean |Δ|"
    values = float(table[:, _ONE].sum() / count), float(table[:, _TWO].sum() / count)
    if what == "bias":
        # Δ of two normalised distributions has a mean of second order, mean Δ²/T: only a larger one is a bias.
        square = float(table[:, _SQUARE].sum() / count)
        bound = max(null.resolved, ALLOWED_BIAS * square / min(1.0, max(null.temperature, 1e-6)))
        mean = Mean.of(table, table[:, _DELTA])
    elif null.floor is None:
        # In half precision |Δ| is compared with the learner's own rounding of the same tokens.
        bound = ROUGHER * unit
        mean = Mean.of(table, table[:, _SIZE] - ROUGHER * table[:, _ROUNDING])
    else:
        # In float32 the unit is the floor of the engines, which is one number for all tokens.
        unit, unit_of = null.floor, "the floor's own mean"
        bound = APART * unit
        mean = Mean.of(table, table[:, _SIZE] - bound * tokens)
    return Tested(
        what=what,
        where=where,
        step=step,
        mean=mean,
        bound=bound,
        critical=critical,
        reach=reach,
        unit=unit,
        unit_of=unit_of,
        values=values,
    )
