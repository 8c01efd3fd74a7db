"""Two-sample tests within strata: permutation of labels, Holm's correction, and the smallest effect they could show.

Samples of one prompt share its distribution, samples of different prompts do not; so labels are permuted within each
prompt. Under the null hypothesis that both sides draw from the same distribution given the prompt, that permutation is
exact, whatever the prompts are.
"""

from __future__ import annotations

import numpy as np
from scipy import stats

PERMUTATIONS = 1999
POWER = 0.8
Tests = dict[str, dict[str, float]]  # name -> statistic, p, p_holm, both means, detectable


def permuted_labels(baseline: np.ndarray, stratum: np.ndarray, *, seed: int = 0) -> np.ndarray:
    """(1 + permutations, n) booleans: row 0 is the observation, each other row permutes the labels within each
    stratum.
    """
    rng = np.random.default_rng(seed)  # a verdict must be the same twice
    n = len(baseline)
    order = np.argsort(stratum, kind="stable")
    rounds = int(np.clip(4e7 // max(n, 1), 999, PERMUTATIONS))
    labels = np.empty((rounds + 1, n), bool)
    labels[0] = baseline
    sorted_stratum, sorted_labels = stratum[order], baseline[order]
    for start in range(1, rounds + 1, 200):
        stop = min(start + 200, rounds + 1)
        keys = sorted_stratum + rng.random((stop - start, n))
        labels[start:stop, order] = sorted_labels[np.argsort(keys, axis=1)]
    return labels


def statistics_of(
    labels: np.ndarray, stratum: np.ndarray, quantities: dict[str, np.ndarray], finish: np.ndarray | None
) -> dict[str, dict[str, float]]:
    counts = labels[0].sum(), (~labels[0]).sum()
    weight = labels / counts[0] - ~labels / counts[1]  # a row times values is the difference of means
    found: dict[str, dict[str, float]] = {}
    for name, values in quantities.items():
        centred = values - (np.bincount(stratum, values) / np.maximum(np.bincount(stratum), 1))[stratum]
        means = {"baseline": float(values[labels[0]].mean()), "candidate": float(values[~labels[0]].mean())}
        found[f"{name}: mean"] = _p_value(np.abs(weight @ centred)) | means
        order = np.argsort(values, kind="stable")
        ends = np.append(np.flatnonzero(np.diff(values[order])), len(values) - 1)
        found[f"{name}: distribution (KS)"] = (
            _p_value(np.abs(np.cumsum(weight[:, order], axis=1)[:, ends]).max(axis=1)) | means
        )
    if finish is not None:
        reasons = sorted(set(finish))
        shares = np.stack([(finish == reason).astype(float) for reason in reasons], axis=1)
        pooled = shares.mean(axis=0)
        found["finish reasons (chi²)"] = _p_value((((weight @ shares) ** 2) / pooled).sum(axis=1)) | {
            f"{side}: {reason}": float(shares[rows, i].mean())
            for side, rows in (("baseline", labels[0]), ("candidate", ~labels[0]))
            for i, reason in enumerate(reasons)
        }
    return found


def _p_value(statistics: np.ndarray) -> dict[str, float]:
    """The share of permutations that are at least as extreme as the observation, itself included (Phipson and Smyth
    2010).
    """
    extreme = np.count_nonzero(statistics >= statistics[0] * (1 - 1e-9) - 1e-12)
    return {"statistic": float(statistics[0]), "p": float(extreme / len(statistics))}


def holm(tests: Tests) -> None:
    """Add `p_holm` to every test (Holm 1979)."""
    largest = 0.0
    for rank, name in enumerate(sorted(tests, key=lambda name: tests[name]["p"])):
        largest = max(largest, min(1.0, tests[name]["p"] * (len(tests) - rank)))
        tests[name]["p_holm"] = largest


def quantile_sum(alpha: float, family: int) -> float:
    """z of a two-sided test at alpha / family, plus z of the power: effects are this many standard errors."""
    return float(stats.norm.ppf(1 - alpha / (2 * family)) + stats.norm.ppf(POWER))


def spread_within(values: np.ndarray, stratum: np.ndarray) -> float:
    """Standard deviation within strata."""
    sizes = np.bincount(stratum)
    centred = values - (np.bincount(stratum, values) / np.maximum(sizes, 1))[stratum]
    free = max(1, len(values) - int(np.count_nonzero(sizes)))
    return float(np.sqrt((centred**2).sum() / free))
