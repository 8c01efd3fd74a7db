"""The probabilities that checks use are those of `scipy.stats`."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from harness.parity.facts import probabilities

CHANCES = st.sampled_from([1e-12, 1e-9, 1e-6, 1e-3, 0.05, 0.5])
COUNTS = st.integers(0, 3000)
RATES = st.floats(1e-6, 1.0)


@given(z=st.floats(-8, 8), chance=CHANCES, freedom=st.integers(1, 500))
def test_continuous(z: float, chance: float, freedom: int) -> None:
    assert probabilities.normal_above(z) == pytest.approx(stats.norm.sf(z), rel=1e-9)
    assert -probabilities.normal_quantile(chance) == pytest.approx(stats.norm.isf(chance), rel=1e-9, abs=1e-12)
    assert probabilities.student_above(z, freedom) == pytest.approx(stats.t.sf(z, freedom), rel=1e-6)
    assert probabilities.student_limit(chance, freedom) == pytest.approx(
        stats.t.isf(chance, freedom), rel=1e-6, abs=1e-9
    )


@given(count=COUNTS, trials=st.integers(1, 3000), rate=RATES, mean=st.floats(0, 3000))
def test_counts_from(count: int, trials: int, rate: float, mean: float) -> None:
    expected = stats.binom.sf(count - 1, trials, rate)
    assert probabilities.binomial_from(count, trials, rate) == pytest.approx(expected, rel=1e-6, abs=1e-300)
    assert probabilities.poisson_from(count, mean) == pytest.approx(
        stats.poisson.sf(count - 1, mean), rel=1e-6, abs=1e-300
    )


@given(chance=CHANCES, trials=st.lists(st.integers(0, 3000), min_size=1), rate=RATES)
def test_binomial_limit(chance: float, trials: list[int], rate: float) -> None:
    """The smallest count that is exceeded with at most the chance; probabilities near one are exact to 1e-13 only."""
    numbers = np.array(trials)
    limits = probabilities.binomial_limit(chance, numbers, rate)
    assert (stats.binom.sf(limits, numbers, rate) <= chance + 1e-13).all()
    below = limits > 0
    assert (stats.binom.sf(limits - 1, numbers, rate)[below] >= chance - 1e-13).all()


@given(chance=CHANCES, mean=st.floats(0, 3000))
def test_poisson_limit(chance: float, mean: float) -> None:
    limit = probabilities.poisson_limit(chance, mean)
    assert stats.poisson.sf(limit, mean) <= chance + 1e-13
    assert limit == 0 or stats.poisson.sf(limit - 1, mean) >= chance - 1e-13


@given(chance=CHANCES, successes=st.floats(0.5, 300), probability=st.floats(0.01, 1.0))
def test_negative_binomial_limit(chance: float, successes: float, probability: float) -> None:
    limit = probabilities.negative_binomial_limit(chance, successes, probability)
    assert stats.nbinom.sf(limit, successes, probability) <= chance + 1e-13
    assert limit == 0 or stats.nbinom.sf(limit - 1, successes, probability) >= chance - 1e-13


@given(marked=st.integers(1, 200), others=st.integers(0, 200), drawn=st.integers(1, 200))
def test_all_among(marked: int, others: int, drawn: int) -> None:
    size = marked + others
    drawn = min(drawn, size)
    expected = stats.hypergeom.sf(drawn - 1, size, marked, drawn)
    assert probabilities.all_among(marked, size, drawn) == pytest.approx(expected, rel=1e-6, abs=1e-300)


@given(values=st.lists(st.floats(0, 1), min_size=1, max_size=200))
def test_uniformity(values: list[float]) -> None:
    statistic, p = probabilities.uniformity(np.array(values))
    expected = stats.kstest(values, "uniform")
    assert statistic == pytest.approx(expected.statistic, abs=1e-12)
    assert p >= expected.pvalue - 1e-9
    if expected.pvalue < 0.1:
        assert p == pytest.approx(expected.pvalue, rel=1e-4, abs=1e-6)
