"""Two-sample tests within strata: for a difference (permutation), and for equality within a margin (equivalence).

Samples of one prompt share its distribution, samples of different prompts do not. So labels are permuted within each
prompt. Under the null hypothesis that both sides draw from the same distribution given the prompt, that permutation is
exact, whatever the prompts are. Finding no difference does not show equality. For that, two one-sided tests (Schuirmann
1987) ask whether the means differ by less than a margin, in standard deviations within prompts. Each family is
corrected by Holm.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.parity.facts.probabilities import normal_above, normal_quantile, student_above
from harness.parity.subjects.native_sampler.observed import FINISH, MARGIN, OUT_OF_REACH, Statistic, Tests

PERMUTATIONS = 1999  # the smallest p is 1/2000, where permutations decide; `p_value` handles smaller ones
POWER = 0.8  # the usual power (Cohen 1988)
PLACES = 64  # points at which two distributions are compared


def permuted_labels(baseline: np.ndarray, stratum: np.ndarray, *, permutations: int = PERMUTATIONS) -> np.ndarray:
    """Return (1 + permutations, n) booleans: row 0 is the observation, each other row permutes labels within each
    stratum.
    """
    rng = np.random.default_rng(0)  # fixed seed: the verdict must be reproducible
    n = len(baseline)
    order = np.argsort(stratum, kind="stable")
    # Fewer permutations for large n: the array stays within about 40 MB.
    rounds = min(permutations, max(999, int(4e7) // max(n, 1)))
    labels = np.empty((rounds + 1, n), bool)
    labels[0] = baseline
    sizes = np.bincount(stratum)
    start = np.cumsum(sizes) - sizes
    for size in np.unique(sizes[sizes > 0]):  # all strata of one size at once
        place = order[start[sizes == size][:, None] + np.arange(size)]
        drawn = np.broadcast_to(baseline[place], (rounds, *place.shape))
        labels[1:, place] = rng.permuted(drawn, axis=2)
    return labels


def statistics_of(
    labels: np.ndarray, stratum: np.ndarray, quantities: dict[str, np.ndarray], finish: np.ndarray | None
) -> Tests:
    """Return name -> statistic, p, errors (see `p_value`) and both means."""
    counts = labels[0].sum(), (~labels[0]).sum()
    # A row of weights times the values is a difference of means: one product gives all permutations.
    weight = np.where(labels, np.float32(1 / counts[0]), np.float32(-1 / counts[1]))
    tests: Tests = {}
    for name, values in quantities.items():
        # Without the mean of its prompt a value says nothing about which prompts a side has.
        centred = values - (np.bincount(stratum, values) / np.maximum(np.bincount(stratum), 1))[stratum]
        means = {"baseline": float(values[labels[0]].mean()), "candidate": float(values[~labels[0]].mean())}
        apart = weight @ centred.astype(weight.dtype)[:, None]
        tests[Statistic.of(name, "mean")] = p_value(np.abs(apart[:, 0]), apart) | means
        # The largest difference of the two distribution functions, at every value or at `PLACES` quantiles of them.
        places = np.unique(values)
        if len(places) > PLACES:
            places = np.unique(np.quantile(values, np.arange(1, PLACES) / PLACES, method="inverted_cdf"))
        below = (values[:, None] <= places).astype(weight.dtype)
        apart = weight @ below
        tests[Statistic.of(name, "distribution (KS)")] = p_value(np.abs(apart).max(axis=1), apart) | means
    if finish is not None:
        # The squared difference of each share over the share itself: chi², up to a factor that all permutations have.
        reasons = sorted(set(finish))
        shares = np.stack([(finish == reason).astype(weight.dtype) for reason in reasons], axis=1)
        apart = weight @ shares
        tests[Statistic.of(FINISH, "chi²")] = p_value((apart**2 / shares.mean(axis=0)).sum(axis=1), apart) | {
            f"{side}: {reason}": float(shares[rows, i].mean())
            for side, rows in (("baseline", labels[0]), ("candidate", ~labels[0]))
            for i, reason in enumerate(reasons)
        }
    return tests


def p_value(statistics: np.ndarray, apart: np.ndarray) -> dict[str, float]:
    """Return statistic, p and `errors` of one permutation test.

    p is the share of permutations that are at least as extreme as the observation, itself included (Phipson and Smyth
    2010). Where no other permutation is, the true p may be far smaller than one over their number. Then p is at most
    what the largest of the differences behind the statistic, `apart` [1 + permutations, differences], allows by itself.

    `errors`: that difference, in standard deviations of the permuted ones. It is nearly normal, with lighter tails
    where groups are balanced (Hoeffding 1951, 1963). Bonferroni corrects for the number of differences.
    """
    extreme = np.count_nonzero(statistics >= statistics[0] * (1 - 1e-5) - 1e-7)  # includes ties, in float32
    off, spread = np.abs(apart[0] - apart[1:].mean(axis=0)), apart[1:].std(axis=0, dtype=np.float64)
    errors = float((off[spread > 0] / spread[spread > 0]).max(initial=0.0))
    p = extreme / len(statistics)
    if extreme == 1:
        p = min(p, 2 * float(normal_above(errors)) * apart.shape[1])
    return {"statistic": float(statistics[0]), "p": float(p), "errors": errors}


def holm(tests: Mapping[Any, dict[str, float]]) -> None:
    """Add `p_holm` to every test (Holm 1979)."""
    largest = 0.0
    for rank, name in enumerate(sorted(tests, key=lambda name: tests[name]["p"])):
        largest = max(largest, min(1.0, tests[name]["p"] * (len(tests) - rank)))
        tests[name]["p_holm"] = largest


@dataclass(frozen=True)
class Equivalence:
    """Two one-sided tests of a difference of means against a margin.

    `difference`, `error` (its standard error), `margin`: in units of the value. `spread`: standard deviation within
    strata. `p`: the larger of the two tests' p. `samples`: the harmonic mean of the sides' samples, in strata that have
    samples of both.
    """

    difference: float
    error: float
    margin: float
    spread: float
    p: float
    samples: float

    def power(self, level: float) -> float:
        """Return the probability of showing equality at this level with these samples, if there is no difference."""
        if self.error == 0.0:
            return 1.0
        return max(0.0, 2 * float(normal_above(_z(level) - self.margin / self.error)) - 1)

    def enough(self, level: float) -> int:
        """Return the samples a side with which that probability is `POWER`."""
        return self._samples(self.margin / (_z(level) + normal_quantile((1 + POWER) / 2)))

    def needed(self, level: float, alpha: float) -> int:
        """Return the samples a side that decide with probability `POWER` if the difference is the measured one.

        To decide is to show equality at `level`, or a difference at `alpha` of a two-sided test, whichever takes fewer
        samples.
        """
        z, apart = normal_quantile(POWER), abs(self.difference)
        return min(self._samples((self.margin - apart) / (_z(level) + z)), self._samples(apart / (_z(alpha / 2) + z)))

    def _samples(self, error: float) -> int:
        """Return the samples a side that make the standard error this small."""
        if not math.isfinite(self.error):
            return OUT_OF_REACH
        return min(OUT_OF_REACH, math.ceil(self.samples * (self.error / error) ** 2)) if error > 0 else OUT_OF_REACH


def _z(level: float) -> float:
    return -normal_quantile(level)


def equivalence(
    values: np.ndarray, stratum: np.ndarray, baseline: np.ndarray, *, margin: float = MARGIN
) -> Equivalence:
    """Test whether the means are equal to within `margin` standard deviations within strata.

    The difference is the mean of the strata's differences, weighted by n m / (n + m) of the two sizes in a stratum. Its
    error uses each stratum's own variance, so that prompts of unequal spread do no harm.
    """
    # Count, mean and squared residues of each cell: a stratum (prompt) and a side.
    cell = 2 * stratum + baseline
    count = np.bincount(cell, minlength=2 * (stratum.max() + 1)).astype(float)
    mean = np.bincount(cell, values, minlength=len(count)) / np.maximum(count, 1)
    residue = (values - mean[cell]) ** 2
    free = np.maximum(count - 1, 0).reshape(-1, 2).sum(axis=1)
    square = np.bincount(stratum, residue, minlength=len(free))
    n = count.reshape(-1, 2)
    weight = n.prod(axis=1) / np.maximum(n.sum(axis=1), 1)
    # Only strata with samples of both sides compare them.
    used, freedom = weight > 0, float(free.sum())
    if freedom <= 0 or not used.any():
        return Equivalence(float("nan"), float("inf"), float("nan"), float("nan"), 1.0, 0.0)
    # A stratum with one sample a side has no variance of its own: it takes the pooled one.
    pooled = float(square.sum() / freedom)
    stratum_variance = np.where(free > 0, square / np.maximum(free, 1), pooled)
    total = float(weight[used].sum())
    difference = float((weight * (mean[0::2] - mean[1::2]))[used].sum() / total)
    error = float(np.sqrt((weight * stratum_variance)[used].sum()) / total)
    spread = float(np.sqrt(pooled))
    samples = 2 / float((1 / n[used].sum(axis=0)).sum())
    # The larger p of the two one-sided tests. Without spread every difference counts.
    p = float(difference != 0.0)
    if error > 0:
        p = student_above((margin * spread - abs(difference)) / error, freedom)
    return Equivalence(difference, error, margin * spread, spread, p, samples)


def quantile_sum(alpha: float, family: int) -> float:
    """Return z of a two-sided test at alpha / family plus z of `POWER`: the detectable effect in standard errors."""
    return _z(alpha / (2 * family)) + normal_quantile(POWER)
