"""The permutation tests: the right error under the null hypothesis whatever the prompts, and the power they claim."""

from __future__ import annotations

import numpy as np
import pytest

from harness.parity.two_samples import holm, permuted_labels, quantile_sum, spread_within, statistics_of


def draw(rng: np.random.Generator, shift: float = 0.0, prompts: int = 20, group: int = 4, skew: bool = False):
    """Lengths of two sides; prompts differ widely. `skew`: one side has more samples of the long prompts."""
    means = rng.uniform(2, 40, prompts)
    values, stratum, side = [], [], []
    for number, mean in enumerate(means):
        for baseline in (True, False):
            n = group * 3 if skew and baseline == (mean > 20) else group
            values.append(rng.geometric(1 / mean, n) + (0 if baseline else shift))
            stratum.append(np.full(n, number))
            side.append(np.full(n, baseline))
    return np.concatenate(values).astype(float), np.concatenate(stratum), np.concatenate(side)


@pytest.mark.parametrize("skew", [False, True])
def test_the_error_under_the_null_hypothesis_is_the_level(skew: bool) -> None:
    """300 null data sets at 5 %: between 2 and 9 % rejections, also where one side has more of the long prompts."""
    rng = np.random.default_rng(5)
    rejected = {"x: mean": 0, "x: distribution (KS)": 0}
    for _ in range(300):
        values, stratum, side = draw(rng, prompts=8, skew=skew)
        labels = permuted_labels(side, stratum)[:400]
        for name, test in statistics_of(labels, stratum, {"x": values}, None).items():
            rejected[name] += test["p"] <= 0.05
    assert all(6 <= count <= 27 for count in rejected.values()), rejected


def test_a_real_difference_is_found() -> None:
    rng = np.random.default_rng(1)
    values, stratum, side = draw(rng, shift=8.0, prompts=64)
    tests = statistics_of(permuted_labels(side, stratum), stratum, {"x": values}, None)
    assert tests["x: mean"]["p"] <= 0.001


def test_labels_are_permuted_within_strata_only() -> None:
    stratum = np.array([0, 1, 0, 1, 1, 2])
    side = np.array([True, True, False, False, False, True])
    labels = permuted_labels(side, stratum)
    assert labels[0].tolist() == side.tolist()
    for number in range(3):
        assert set(labels[:, stratum == number].sum(axis=1)) == {side[stratum == number].sum()}
    assert len({tuple(row) for row in labels.tolist()}) == 2 * 3  # every arrangement that the strata allow
    assert np.array_equal(labels, permuted_labels(side, stratum))  # a verdict is the same twice


def test_other_finish_reasons_are_found() -> None:
    rng = np.random.default_rng(2)
    stratum = np.repeat(np.arange(50), 8)
    side = np.tile([True] * 4 + [False] * 4, 50)
    same = np.where(rng.random(400) < 0.5, "stop", "length").astype(object)
    other = np.where(rng.random(400) < np.where(side, 0.5, 0.8), "stop", "length").astype(object)
    labels = permuted_labels(side, stratum)
    assert statistics_of(labels, stratum, {}, same)["finish reasons (chi²)"]["p"] > 0.01
    assert statistics_of(labels, stratum, {}, other)["finish reasons (chi²)"]["p"] <= 0.001


def test_another_shape_with_an_equal_mean_is_found() -> None:
    rng = np.random.default_rng(3)
    stratum, side = np.repeat(np.arange(100), 8), np.tile([True] * 4 + [False] * 4, 100)
    values = np.where(side, rng.normal(0, 1, 800), rng.choice([-1.0, 1.0], 800))
    tests = statistics_of(permuted_labels(side, stratum), stratum, {"x": values}, None)
    assert tests["x: distribution (KS)"]["p"] <= 0.001


def test_holm_corrects_step_by_step() -> None:
    tests = {"a": {"p": 0.01}, "b": {"p": 0.04}, "c": {"p": 0.03}}
    holm(tests)
    assert [tests[name]["p_holm"] for name in "abc"] == pytest.approx([0.03, 0.06, 0.06])


def test_the_detectable_effect_is_detected_four_times_in_five() -> None:
    rng = np.random.default_rng(4)
    prompts, group, found = 30, 8, 0
    stratum = np.repeat(np.arange(prompts), group)
    side = np.tile([True] * (group // 2) + [False] * (group // 2), prompts)
    effect = quantile_sum(0.05, 1) * np.sqrt(2 / (len(side) / 2))
    for _ in range(150):
        values = rng.normal(0, 1, prompts)[stratum] * 5 + rng.normal(0, 1, len(stratum)) + np.where(side, 0, effect)
        labels = permuted_labels(side, stratum)[:400]
        found += statistics_of(labels, stratum, {"x": values}, None)["x: mean"]["p"] <= 0.05
        assert spread_within(values, stratum) == pytest.approx(1.0, abs=0.25)
    assert 0.68 <= found / 150 <= 0.92
