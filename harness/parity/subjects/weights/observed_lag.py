"""One update behind: does an engine compute with the learner's weights, or with those before the last update?

At a learning rate of 1e-6 an update moves a log-probability by less than half precision rounds it, so no tolerance
shows it. Both answers are known token by token, though: the learner scores each sample with both weights, in half
precision and in float32. Whichever the engine is nearer to, over all tokens, it computed with. In float32 what the
update moved tells them apart; in half precision also how each rounds, which engines share with the learner in part and
which every change of a weight draws anew. An engine that is significantly nearer to neither was not tested.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from harness.parity.subjects.log_probabilities.observed_clusters import Clusters, Mean, student
from harness.parity.subjects.log_probabilities.observed_systematic import FALSE_ALARM, RUN

# Least correlation of log-probabilities before an update with those after it: 0.96 at a learning rate of 1e-3 was
# measured, 0.9997 at 1e-4.
ALIKE = 0.5
READINGS = ("in float32", "as rounded", "share of the update")
# Columns of the sums, after the first two readings. The third: of what the update moved, d, the engine lacks the share
# Σ d·(engine − now) / Σ d², which is 0 for the current weights and 1 for those before; one half divides them.
_PRODUCT, _SQUARE, _MOVED, _NOW, _BEFORE = range(3, 8)


@dataclass(frozen=True)
class Nearer:
    """One reading: how much nearer the engine is to the learner's weights than to those before, in nats a token; the
    third in shares of the update."""

    reading: str
    where: str
    step: int
    mean: Mean
    critical: float

    @property
    def errors(self) -> float:
        """Standard errors; positive: nearer to the current weights."""
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
    """One engine against both weights of its learner, by cluster and step. `versions`: what float32 makes of the
    current weights and of those before, then what the learner's type makes of both, in parts."""

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
        """One step's tokens, flat. `now`, `before`: the learner's log-probabilities as rounded, and in float32."""
        rounded, exact = (np.abs(engine.astype(np.float64) - logprob) for logprob in now)
        rounded_before, exact_before = (np.abs(engine.astype(np.float64) - logprob) for logprob in before)
        update = before[1].astype(np.float64) - now[1]
        product, moved = update * (engine.astype(np.float64) - now[1]), np.abs(update)
        columns = [exact_before - exact, rounded_before - rounded, product, update**2, moved, exact, exact_before]
        finite = np.isfinite(np.sum(columns, axis=0))
        if finite.any():
            self.steps.setdefault(step, Clusters()).add(cluster[finite], *(column[finite] for column in columns))
            self.versions.append(np.stack([now[1], before[1], now[0], before[0]])[:, finite])

    @property
    def believed(self) -> bool:
        """Whether both versions speak of the same tokens, in both types: numbers that are not correlated do not."""
        exact, exact_before, rounded, rounded_before = np.concatenate(self.versions, axis=1).astype(np.float64)
        pairs = ((exact, exact_before), (rounded, rounded_before))
        return all(now.std() and before.std() and np.corrcoef(now, before)[0, 1] >= ALIKE for now, before in pairs)


@dataclass(frozen=True)
class InUse:
    """What the readings say of one engine. `moved`: mean |Δ| that the updates made; `now`, `before`: mean distance of
    the engine from the weights of then, in float32; nats."""

    tests: list[Nearer]
    moved: float
    now: float
    before: float
    tokens: int
    steps: list[int]

    @property
    def behind(self) -> list[Nearer]:
        return [test for test in self.tests if test.behind]

    @property
    def current(self) -> bool:
        """Significantly nearer to the current weights over the run, and nowhere to those before."""
        return not self.behind and any(test.current for test in self.tests if test.where == RUN)

    @property
    def best(self) -> Nearer:
        """The run's more telling reading."""
        return max((test for test in self.tests if test.where == RUN), key=lambda test: abs(test.errors))

    @property
    def alone(self) -> int:
        """Steps that tell by themselves."""
        return len({test.step for test in self.tests if test.where != RUN and (test.current or test.behind)})


def sides(updates: dict[str, Updates]) -> dict[str, InUse]:
    """Side -> its readings; sides without any are left out. All tests share one error rate."""
    usable = {
        name: side_updates for name, side_updates in updates.items() if side_updates.steps and side_updates.believed
    }
    number = sum(len(READINGS) * (1 + len(side_updates.steps)) for side_updates in usable.values())
    return {name: _side(side_updates, FALSE_ALARM / number) for name, side_updates in usable.items()}


def _side(updates: Updates, error_rate: float) -> InUse:
    run, by_step = Clusters(), sorted(updates.steps.items())
    for _, clusters in by_step:
        run.extend(clusters)
    run_table = run.table()
    tests = _readings(RUN, by_step[0][0], run_table, error_rate)
    if any(test.behind for test in tests):
        tests = [replace(test, step=_told_by(by_step, error_rate)) for test in tests]
    for step, clusters in by_step:
        tests += _readings(f"step {step}", step, clusters.table(), error_rate)
    count = max(1.0, float(run_table[:, 0].sum()))
    moved, now, before = (float(run_table[:, column].sum()) / count for column in (_MOVED, _NOW, _BEFORE))
    return InUse(tests, moved, now, before, int(run_table[:, 0].sum()), sorted(updates.steps))


def _readings(where: str, step: int, table: np.ndarray, error_rate: float) -> list[Nearer]:
    critical = student(error_rate / 2, max(1, len(table) - 1))
    share = table[:, [_SQUARE]], table[:, _SQUARE] / 2 - table[:, _PRODUCT]
    means = [Mean.of(table, table[:, 1]), Mean.of(table, table[:, 2]), Mean.of(*share)]
    return [Nearer(name, where, step, mean, critical) for name, mean in zip(READINGS, means, strict=True)]


def _told_by(by_step: list[tuple[int, Clusters]], error_rate: float) -> int:
    """The first step that, with those before it, tells that the engine is behind; the last where none does."""
    so_far = Clusters()
    for step, clusters in by_step:
        so_far.extend(clusters)
        if any(reading.behind for reading in _readings(RUN, step, so_far.table(), error_rate)):
            return step
    return by_step[-1][0]
