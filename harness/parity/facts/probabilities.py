"""Tail probabilities and quantiles of the distributions that checks use, from `scipy.special`.

`scipy.stats` has all of them, but importing it takes half of the time in which a small pair is read and judged.
A limit is the smallest count that is exceeded with a probability of at most `chance`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from scipy import special

Value = Any  # a number, or an array of numbers


def normal_above(z: Value) -> Value:
    """P(X > z) of the standard normal distribution."""
    return special.ndtr(-np.asarray(z))


def normal_quantile(probability: float) -> float:
    """z with P(X <= z) = probability, of the standard normal distribution."""
    return float(special.ndtri(probability))


def student_above(t: float, freedom: float) -> float:
    """P(X > t) of Student's t distribution."""
    return float(special.stdtr(freedom, -t))


@lru_cache(maxsize=4096)  # every step of a run needs the same few
def student_limit(tail: float, freedom: float) -> float:
    """t with P(X > t) = tail, of Student's t distribution."""
    return -float(special.stdtrit(freedom, tail))


def binomial_from(count: int, trials: int, rate: float) -> float:
    """P(X >= count) of the binomial distribution."""
    if count <= 0:
        return 1.0
    return float(special.betainc(count, trials - count + 1, rate)) if count <= trials else 0.0


def binomial_limit(chance: float, trials: Value, rate: float) -> Value:
    n = np.asarray(trials)
    start = special.bdtrik(1.0 - chance, np.maximum(n, 1), rate)
    return np.where(n > 0, _smallest(lambda count: special.bdtr(count, n, rate), start, 1.0 - chance), 0.0)


def poisson_from(count: int, mean: float) -> float:
    """P(X >= count) of the Poisson distribution."""
    return float(special.gammainc(count, mean)) if count > 0 else 1.0


def poisson_limit(chance: float, mean: float) -> int:
    if mean <= 0:
        return 0
    start = special.pdtrik(1.0 - chance, mean)
    return int(_smallest(lambda count: special.pdtr(count, mean), start, 1.0 - chance))


def negative_binomial_limit(chance: float, successes: float, probability: float) -> int:
    """Of the failures before so many successes, which need not be whole."""
    start = special.nbdtrik(1.0 - chance, successes, probability)
    return int(_smallest(lambda count: special.betainc(successes, count + 1, probability), start, 1.0 - chance))


def all_among(marked: int, size: int, drawn: int) -> float:
    """The probability that all of `drawn` elements, drawn without putting back, are marked: `marked` of `size` are."""
    if drawn > marked:
        return 0.0
    logs = special.gammaln([marked + 1, size - drawn + 1, marked - drawn + 1, size + 1])
    return math.exp(logs[0] + logs[1] - logs[2] - logs[3])


def uniformity(values: np.ndarray) -> tuple[float, float]:
    """The Kolmogorov-Smirnov statistic of values in [0, 1] against the uniform distribution, and its p.

    p is twice the exact p of the one-sided test (Smirnov 1939), an upper bound which is exact to 1e-6 below 0.1.
    """
    ordered, n = np.sort(values), len(values)
    steps = np.arange(n + 1) / n
    statistic = float(max((steps[1:] - ordered).max(), (ordered - steps[:-1]).max()))
    return statistic, min(1.0, 2 * float(special.smirnov(n, statistic)))


def _smallest(below: Callable[[Value], Value], start: Value, probability: float) -> Value:
    """The smallest count with P(X <= count) >= probability, from a start that is real and right to within one."""
    upper = np.ceil(start)
    lower = np.maximum(upper - 1, 0.0)
    return np.where(below(lower) >= probability, lower, upper)
