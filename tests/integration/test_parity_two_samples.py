"""The permutation tests: the right error under the null hypothesis whatever the prompts, and the power they claim."""

from __future__ import annotations

import numpy as np
import pytest

from harness.parity.subjects.native_sampler.observed import EQUIVALENCE_ALPHA
from harness.parity.subjects.native_sampler.observed_two_samples import (
    POWER,
    equivalence,
    holm,
    permuted_labels,
    quantile_sum,
    statistics_of,
)


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
        labels = permuted_labels(side, stratum, permutations=399)
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
        labels = permuted_labels(side, stratum, permutations=399)
        found += statistics_of(labels, stratum, {"x": values}, None)["x: mean"]["p"] <= 0.05
        assert equivalence(values, stratum, side).spread == pytest.approx(1.0, abs=0.25)
    assert 0.68 <= found / 150 <= 0.92


def uneven(rng: np.random.Generator, group: int, prompts: int = 40, shift: float = 0.0):
    """Two sides whose prompts differ in mean and in spread; `shift` in standard deviations within prompts."""
    stratum, side = np.repeat(np.arange(prompts), 2 * group), np.tile(np.repeat([True, False], group), prompts)
    scale = np.sqrt(rng.uniform(0.2, 1.8, prompts))
    noise = rng.standard_exponential(len(side)) - 1.0
    return rng.normal(0, 5, prompts)[stratum] + scale[stratum] * noise + np.where(side, 0.0, shift), stratum, side


def shown_equal(rng: np.random.Generator, rounds: int, group: int, shift: float, family: int = 1) -> float:
    level = EQUIVALENCE_ALPHA / family
    return sum(equivalence(*uneven(rng, group, shift=shift)).p <= level for _ in range(rounds)) / rounds


@pytest.mark.parametrize("group", [6, 16])
def test_a_difference_as_large_as_the_margin_is_called_equal_at_most_as_often_as_stated(group: int) -> None:
    """1,500 data sets a case, of skewed values; three standard errors of a rate of 5 % are 1.7 %."""
    rng = np.random.default_rng(11)
    for shift in (0.2, -0.2):
        assert shown_equal(rng, 1500, group, shift) <= EQUIVALENCE_ALPHA + 0.017


def test_as_many_samples_as_enough_show_equality_as_often_as_stated() -> None:
    rng, level = np.random.default_rng(12), EQUIVALENCE_ALPHA / 4
    enough = equivalence(*uneven(rng, 6)).enough(level)
    group = round(enough / 40)
    rate = shown_equal(rng, 400, group, 0.0, family=4)
    assert POWER - 0.06 <= rate <= POWER + 0.08, (enough, rate)
    assert equivalence(*uneven(rng, group)).power(level) == pytest.approx(POWER, abs=0.08)


@pytest.mark.parametrize("shift", [0.05, 0.15, 0.3])
def test_as_many_samples_as_needed_decide_as_often_as_stated(shift: float) -> None:
    """Whichever decision takes fewer: equality of a small difference, or the difference of a large one."""
    rng, level, alpha = np.random.default_rng(17), 0.01, 0.001
    needed = equivalence(*uneven(rng, 400, shift=shift)).needed(level, alpha)

    def decided(samples: int) -> float:
        pairs = [equivalence(*uneven(rng, round(samples / 40), shift=shift)) for _ in range(200)]
        return sum(one.p <= level or abs(one.difference) / one.error >= 3.29 for one in pairs) / len(pairs)

    assert decided(needed) >= POWER - 0.1 and decided(needed // 2) <= 0.6


def test_few_samples_show_no_equality_whatever_they_look_like() -> None:
    rng = np.random.default_rng(13)
    assert shown_equal(rng, 200, 1, 0.0) == 0.0


def test_equal_values_are_equal_and_unequal_constants_are_not() -> None:
    stratum, side = np.repeat([0, 1], 6), np.tile([True, False], 6)
    assert equivalence(np.ones(12), stratum, side).p == 0.0
    assert equivalence(np.where(side, 1.0, 2.0), stratum, side).p == 1.0


def test_prompts_that_one_side_alone_has_say_nothing() -> None:
    rng = np.random.default_rng(14)
    values, stratum, side = uneven(rng, 8)
    alone = equivalence(values, np.where(side, stratum, stratum + 40), side)
    assert alone.p == 1.0 and alone.power(0.05) == 0.0
    more = np.concatenate([values, [1e6] * 4]), np.concatenate([stratum, [99] * 4]), np.concatenate([side, [True] * 4])
    assert equivalence(*more).difference == pytest.approx(equivalence(values, stratum, side).difference)


def test_the_family_of_a_stage_raises_a_false_alarm_as_seldom_as_stated() -> None:
    """Seven tests under the null hypothesis, 200 stages: alpha 0.05, so 10 expected, 20 would be one in 700."""
    rng, alarms = np.random.default_rng(15), 0
    for _ in range(200):
        values, stratum, side = uneven(rng, 4, prompts=12)
        other, third = values + rng.normal(0, 2, len(values)), np.round(values)
        finish = np.where(rng.random(len(values)) < 0.6, "stop", "length").astype(object)
        labels = permuted_labels(side, stratum, permutations=399)
        tests = statistics_of(labels, stratum, {"a": values, "b": other, "c": third}, finish)
        holm(tests)
        alarms += min(test["p_holm"] for test in tests.values()) <= 0.05
    assert alarms <= 19
