"""Whether an engine computes with the learner's weights, or with those before its last update.

At a learning rate of 1e-6 an update moves a log-probability by less than half precision rounds it, so no tolerance
shows an engine that is one update behind. But both answers are known at each token: the learner scores every sample
with both weights, in half precision and in float32. Over all tokens, the engine used the weights that it is nearer to.
In float32 the movement of the update tells the two apart. In half precision the rounding does so too: engines share
part of it with the learner, and every change of a weight makes it anew. An engine that is not significantly nearer to
either counts as not tested.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from harness.parity.facts.probabilities import student_limit
from harness.parity.subjects.log_probabilities.observed_clusters import Clusters, Mean
from harness.parity.subjects.log_probabilities.observed_systematic import FALSE_ALARM, RUN

# Least correlation of the log-probabilities before and after an update. Measured: 0.96 at a learning rate of 1e-3,
# 0.9997 at 1e-4.
ALIKE = 0.5
READINGS = ("in float32", "as rounded", "share of the update")
# Columns of the sums, after the first two readings. The third reading is the share of the update d that the engine
# lacks, Σ d·(engine − now) / Σ d². It is 0 for the current weights and 1 for those before; 1/2 separates them.
_PRODUCT, _SQUARE, _MOVED, _NOW, _BEFORE = range(3, 8)


@dataclass(frozen=True)
class Nearer:
    """One reading: by how much the engine is nearer to the current weights than to those before.

    The unit of `mean` is nats a token, for the third reading the share of the update.
    """

    reading: str
    where: str
    step: int
    mean: Mean
    critical: float

    @property
    def errors(self) -> float:
        """Return the distance in standard errors; positive is nearer to the current weights."""
        if not self.mean.value:
            return 0.0
        if not self.mean.error:
            return float(np.copysign(np.inf, self.mean.value))
        return self.mean.value / self.mean.error

    @property
    def current(self) -> bool:
        return self.errors > self.critical

    @property
    def behind(self) -> bool:
        return self.errors < -self.critical


@dataclass
class Updates:
    """The distances of one engine from both weights of its learner, by cluster and step.

    `versions`: for each step an array [4, tokens] of the learner's log-probabilities: in float32 with the current
    weights and with those before, then the same two in the learner's own type.
    """

    steps: dict[int, Clusters] = field(default_factory=dict)
    versions: list[np.ndarray] = field(default_factory=list)

    def add(
        self,
        step: int,
        cluster: np.ndarray,
        engine: np.ndarray,
        now: tuple[np.ndarray, np.ndarray],
        before: tuple[np.ndarray, np.ndarray],
    ) -> None:
        """Add one step's tokens, flat. `now`, `before`: the learner's log-probabilities as (rounded, in float32)."""
        # Distances from both weights, in the learner's own type and in float32. Their difference says which is nearer.
        rounded, exact = (np.abs(engine.astype(np.float64) - logprob) for logprob in now)
        rounded_before, exact_before = (np.abs(engine.astype(np.float64) - logprob) for logprob in before)
        # The share of the update d that the engine lacks, Σ d·(engine − now) / Σ d².
        update = before[1].astype(np.float64) - now[1]
        product, moved = update * (engine.astype(np.float64) - now[1]), np.abs(update)
        columns = [exact_before - exact, rounded_before - rounded, product, update**2, moved, exact, exact_before]
        finite = np.isfinite(np.sum(columns, axis=0))
        if finite.any():
            self.steps.setdefault(step, Clusters()).add(cluster[finite], *(column[finite] for column in columns))
            self.versions.append(np.stack([now[1], before[1], now[0], before[0]])[:, finite])

    @property
    def believed(self) -> bool:
        """Whether both versions score the same tokens, in both types. Log-probabilities of the same tokens are
        correlated.
        """
        exact, exact_before, rounded, rounded_before = np.concatenate(self.versions, axis=1).astype(np.float64)
        pairs = ((exact, exact_before), (rounded, rounded_before))
        return all(now.std() and before.std() and np.corrcoef(now, before)[0, 1] >= ALIKE for now, before in pairs)


@dataclass(frozen=True)
class InUse:
    """The readings of one engine.

    `moved`: mean |Δ| of the updates. `now`, `before`: mean distance of the engine from the current weights and from
    those before. All in float32, nats.
    """

    tests: tuple[Nearer, ...]
    moved: float
    now: float
    before: float
    tokens: int
    steps: tuple[int, ...]

    @property
    def behind(self) -> list[Nearer]:
        return [test for test in self.tests if test.behind]

    @property
    def current(self) -> bool:
        """Whether the engine is significantly nearer to the current weights over the run, and nowhere to those
        before.
        """
        return not self.behind and any(test.current for test in self.tests if test.where == RUN)

    @property
    def best(self) -> Nearer:
        """Return the reading of the whole run with the most standard errors."""
        return max((test for test in self.tests if test.where == RUN), key=lambda test: abs(test.errors))

    @property
    def alone(self) -> int:
        """Return the number of steps that are significant by themselves."""
        of_steps = [test for test in self.tests if test.where != RUN]
        return len({test.step for test in of_steps if test.current or test.behind})


def sides(updates: dict[str, Updates]) -> dict[str, InUse]:
    """Return the readings of each side that has usable updates. All tests share one error rate (Bonferroni)."""
    usable = {name: of_side for name, of_side in updates.items() if of_side.steps and of_side.believed}
    tests = sum(len(READINGS) * (1 + len(of_side.steps)) for of_side in usable.values())  # of the run and of each step
    return {name: _side(of_side, FALSE_ALARM / tests) for name, of_side in usable.items()}


def _side(updates: Updates, error_rate: float) -> InUse:
    run, by_step = Clusters(), sorted(updates.steps.items())
    for _, clusters in by_step:
        run.extend(clusters)
    run_table = run.table()
    tests = _readings(RUN, by_step[0][0], run_table, error_rate)
    if any(test.behind for test in tests):
        tests = [replace(test, step=_first_telling_step(by_step, error_rate)) for test in tests]
    for step, clusters in by_step:
        tests += _readings(f"step {step}", step, clusters.table(), error_rate)
    count = max(1.0, float(run_table[:, 0].sum()))
    moved, now, before = (float(run_table[:, column].sum()) / count for column in (_MOVED, _NOW, _BEFORE))
    return InUse(tuple(tests), moved, now, before, int(run_table[:, 0].sum()), tuple(sorted(updates.steps)))


def _readings(where: str, step: int, table: np.ndarray, error_rate: float) -> list[Nearer]:
    critical = student_limit(error_rate / 2, max(1, len(table) - 1))
    share = table[:, [_SQUARE]], table[:, _SQUARE] / 2 - table[:, _PRODUCT]
    means = [Mean.of(table, table[:, 1]), Mean.of(table, table[:, 2]), Mean.of(*share)]
    return [Nearer(name, where, step, mean, critical) for name, mean in zip(READINGS, means, strict=True)]


def _first_telling_step(by_step: list[tuple[int, Clusters]], error_rate: float) -> int:
    """Return the first step at which the steps so far show that the engine is behind; the last step where none does."""
    so_far = Clusters()
    for step, clusters in by_step:
        so_far.extend(clusters)
        if any(reading.behind for reading in _readings(RUN, step, so_far.table(), error_rate)):
            return step
    return by_step[-1][0]
