"""Two-sample tests within strata: is there a difference (permutation), is there none that matters (equivalence)?

Samples of one prompt share its distribution, samples of different prompts do not; so labels are permuted within each
prompt. Under the null hypothesis that both sides draw from the same distribution given the prompt, that permutation is
exact, whatever the prompts are. No difference found is no equality shown: for that, two one-sided tests (Schuirmann
1987) ask whether the means differ by less than a margin, in standard deviations within prompts. Each family is
corrected by Holm.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from harness.parity.subjects.native_sampler.observed import FINISH, MARGIN, OUT_OF_REACH, Statistic, Tests

PERMUTATIONS = 1999  # p is 1/2000 at least, where they decide: `p_value` has what is smaller
POWER = 0.8  # the usual one (Cohen 1988)
PLACES = 64  # of a distribution at which two are compared


def permuted_labels(baseline: np.ndarray, stratum: np.ndarray, *, permutations: int = PERMUTATIONS) -> np.ndarray:
    """(1 + permutations, n) booleans: row 0 is the observation, each other row permutes the labels within each
    stratum.
    """
    rng = np.random.default_rng(0)  # a verdict must be the same twice
    n = len(baseline)
    order = np.argsort(stratum, kind="stable")
    rounds = min(permutations, max(999, int(4e7) // max(n, 1)))
    labels = np.empty((rounds + 1, n), bool)
    labels[0] = baseline
    sizes = np.bincount(stratum)
    start = np.cumsum(sizes) - sizes
    for size in np.unique(sizes[sizes > 0]):  # strata of one size at once
        place = order[start[sizes == size][:, None] + np.arange(size)]
        drawn = np.broadcast_to(baseline[place], (rounds, *place.shape))
        labels[1:, place] = rng.permuted(drawn, axis=2)
    return labels


def statistics_of(
    labels: np.ndarray, stratum: np.ndarray, quantities: dict[str, np.ndarray], finish: np.ndarray | None
) -> Tests:
    """Name -> statistic, p, errors (see `p_value`) and both means."""
    counts = labels[0].sum(), (~labels[0]).sum()
    # a row times values is the difference of means
    weight = np.where(labels, np.float32(1 / counts[0]), np.float32(-1 / counts[1]))
    tests: Tests = {}
    for name, values in quantities.items():
        centred = values - (np.bincount(stratum, values) / np.maximum(np.bincount(stratum), 1))[stratum]
        means = {"baseline": float(values[labels[0]].mean()), "candidate": float(values[~labels[0]].mean())}
        apart = weight @ centred.astype(weight.dtype)[:, None]
        tests[Statistic.of(name, "mean")] = p_value(np.abs(apart[:, 0]), apart) | means
        places = np.unique(values)
        if len(places) > PLACES:
            places = np.unique(np.quantile(values, np.arange(1, PLACES) / PLACES, method="inverted_cdf"))
        below = (values[:, None] <= places).astype(weight.dtype)
        apart = weight @ below
        tests[Statistic.of(name, "distribution (KS)")] = p_value(np.abs(apart).max(axis=1), apart) | means
    if finish is not None:
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
    """p is the share of permutations that are at least as extreme as the observation, itself included (Phipson and
    Smyth 2010). Where no other one is, it may be far smaller than one of their number: then it is at most what the
    largest of the differences behind the statistic, `apart` [1 + permutations, differences], allows by itself.

    `errors`: that difference in standard deviations of the permuted ones. Such a difference is nearly normal, with
    lighter tails where groups are balanced (Hoeffding 1951, 1963); Bonferroni corrects for the number of them.
    """
    extreme = np.count_nonzero(statistics >= statistics[0] * (1 - 1e-5) - 1e-7)  # ties, in float32
    off, spread = np.abs(apart[0] - apart[1:].mean(axis=0)), apart[1:].std(axis=0, dtype=np.float64)
    errors = float((off[spread > 0] / spread[spread > 0]).max(initial=0.0))
    p = extreme / len(statistics)
    if extreme == 1:
        p = min(p, 2 * float(stats.norm.sf(errors)) * apart.shape[1])
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

    `difference`, `error` (its standard error) and `margin` in units of the value; `spread`: standard deviation within
    strata. `p`: of the larger of the two tests. `samples`: a side, of which the strata use a part.
    """

    difference: float
    error: float
    margin: float
    spread: float
    p: float
    samples: float

    def power(self, level: float) -> float:
        """The chance of showing equality at this level, were there no difference, by as many samples as these."""
        if self.error == 0.0:
            return 1.0
        return max(0.0, 2 * float(stats.norm.cdf(self.margin / self.error - _z(level))) - 1)

    def enough(self, level: float) -> int:
        """Samples a side with which that chance is `POWER`."""
        return self._samples(self.margin / (_z(level) + float(stats.norm.ppf((1 + POWER) / 2))))

    def needed(self, level: float, alpha: float) -> int:
        """Samples a side that decide with a chance of `POWER`, if the difference is what was measured: show equality at
        `level`, or a difference at `alpha` of a two-sided test, whichever takes fewer."""
        z, apart = float(stats.norm.ppf(POWER)), abs(self.difference)
        return min(self._samples((self.margin - apart) / (_z(level) + z)), self._samples(apart / (_z(alpha / 2) + z)))

    def _samples(self, error: float) -> int:
        """Samples a side that make the standard error as small."""
        if not math.isfinite(self.error):
            return OUT_OF_REACH
        return min(OUT_OF_REACH, math.ceil(self.samples * (self.error / error) ** 2)) if error > 0 else OUT_OF_REACH


def _z(level: float) -> float:
    return float(stats.norm.isf(level))


def equivalence(
    values: np.ndarray, stratum: np.ndarray, baseline: np.ndarray, *, margin: float = MARGIN
) -> Equivalence:
    """Are the means equal to within `margin` standard deviations within strata?

    The difference is the mean of the strata's differences, each with the weight n m / (n + m) of its two sizes, and its
    error takes each stratum's own variance, so prompts of unequal spread do no harm.
    """
    cell = 2 * stratum + baseline
    count = np.bincount(cell, minlength=2 * (stratum.max() + 1)).astype(float)
    mean = np.bincount(cell, values, minlength=len(count)) / np.maximum(count, 1)
    residue = (values - mean[cell]) ** 2
    free = np.maximum(count - 1, 0).reshape(-1, 2).sum(axis=1)
    square = np.bincount(stratum, residue, minlength=len(free))
    n = count.reshape(-1, 2)
    weight = n.prod(axis=1) / np.maximum(n.sum(axis=1), 1)
    used, freedom = weight > 0, float(free.sum())
    if freedom <= 0 or not used.any():
        return Equivalence(float("nan"), float("inf"), float("nan"), float("nan"), 1.0, 0.0)
    pooled = float(square.sum() / freedom)
    stratum_variance = np.where(free > 0, square / np.maximum(free, 1), pooled)
    total = float(weight[used].sum())
    difference = float((weight * (mean[0::2] - mean[1::2]))[used].sum() / total)
    error = float(np.sqrt((weight * stratum_variance)[used].sum()) / total)
    spread = float(np.sqrt(pooled))
    samples = 2 / float((1 / n[used].sum(axis=0)).sum())
    p = float(difference != 0.0)
    if error > 0:
        p = float(stats.t.sf((margin * spread - abs(difference)) / error, freedom))
    return Equivalence(difference, error, margin * spread, spread, p, samples)


def quantile_sum(alpha: float, family: int) -> float:
    """z of a two-sided test at alpha / family, plus z of the power: effects are this many standard errors."""
    return _z(alpha / (2 * family)) + float(stats.norm.ppf(POWER))
