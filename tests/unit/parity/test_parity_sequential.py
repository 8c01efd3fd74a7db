"""The plan of looks at a native stage: what each may spend, and when drawing ends."""

from __future__ import annotations

import dataclasses
import re
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from harness.parity.subjects.native_sampler.observed import (
    DIFFERENT,
    EQUAL,
    UNDECIDED,
    Look,
    NativeResult,
    Quantity,
    Statistic,
    most_looks,
)
from harness.parity.subjects.native_sampler.observed_distributions import Compared, conclude, look
from harness.parity.subjects.native_sampler.observed_looks import Plan
from harness.parity.subjects.native_sampler.observed_two_samples import Equivalence, p_value
from harness.recordings.records.run_settings import NativeSettings
from scenarios.settings import Native

MEAN, SHAPE = Statistic.of("length", "mean"), Statistic.of("length", "distribution (KS)")


@pytest.mark.parametrize(
    ("draws", "part", "looks"),
    [(1, 1.0, 1), (2, 1.0, 2), (4, 1.0, 4), (20, 1.0, 20), (4, 0.25, 13), (1, 0.25, 1), (2, 0.3, 5)],
)
def test_all_looks_together_spend_the_error_and_no_more(draws: int, part: float, looks: int) -> None:
    plan = Plan(draws=draws, part=part)
    levels = [plan.level(plan.alpha, draw) for draw in range(1, looks + 1)]
    assert sum(levels) == pytest.approx(plan.alpha) and levels == sorted(levels, reverse=True)
    assert plan.strictest == (pytest.approx(levels[-1]), pytest.approx(levels[-1] * 50))


@given(samples=st.integers(0, 5000), further=st.integers(1, 5000), draws=st.integers(1, 20))
def test_the_draws_of_a_stage_are_those_of_its_plan(samples: int, further: int, draws: int) -> None:
    settings = Native(samples=samples, further=further, draws=draws)
    sizes = settings.sizes
    assert sizes[0] == samples and sum(sizes) == samples * draws and all(size <= samples for size in sizes)
    section = dataclasses.asdict(settings)
    if samples:
        plan = planned(section)
        assert most_looks(plan.draws, plan.part) == len(sizes)
    assert planned({name: value for name, value in section.items() if name != "further"}).part == 1.0
    assert planned(section | {"further": float("inf")}).part == 1.0


def planned(section: dict[str, Any]) -> Plan:
    """The plan of a recording whose scenario has this section."""
    settings = SimpleNamespace(native=NativeSettings.of(section))
    return Plan.of(cast(Any, SimpleNamespace(records=SimpleNamespace(settings=settings))))


def measured(p: float, apart: float, error: float = 0.044) -> Compared:
    """A length with a test of a difference at `p`, and means so many standard deviations apart."""
    equality = Equivalence(apart, error, 0.2, 1.0, float(stats.norm.sf((0.2 - abs(apart)) / error)), 1024)
    return Compared(64, {MEAN: {"p": p}}, {"length": equality}, {"length": (8.0, 8.0 + apart)})


def after(*looks: Compared, plan: Plan) -> NativeResult:
    made = tuple(look(one, plan, number, (1024 * number,) * 2) for number, one in enumerate(looks, 1))
    result = NativeResult(made, draws=plan.draws, most=1024 * plan.draws, samples=(1024 * len(looks),) * 2)
    return conclude(result, looks[-1], plan)


@pytest.mark.parametrize(
    ("p", "apart", "outcome", "more"),
    [
        (0.5, 0.0, "equal", False),
        (1e-6, 0.5, "different", False),
        (1e-6, 0.05, "different", False),  # a difference within the margin is one
        (0.003, 0.15, "undecided", True),
        (0.003, 0.0, "undecided", True),  # equal in the mean, and in doubt
        (0.02, 0.15, "undecided", True),
    ],
)
def test_a_look_decides_or_asks_for_more(p: float, apart: float, outcome: str, more: bool) -> None:
    result = after(measured(p, apart), plan=Plan())
    assert result.outcomes == {"length": outcome} and result.wants_more == more


def test_what_was_shown_at_one_look_stays_shown() -> None:
    result = after(measured(0.5, 0.0), measured(0.2, 0.17, 0.03), plan=Plan())
    assert result.outcomes == {"length": "equal"} and result.quantities["length"].samples == 1024
    result = after(measured(1e-6, 0.1), measured(0.2, 0.0, 0.03), plan=Plan())
    assert result.outcomes == {"length": "different"} and result.rejected == (MEAN,)


def test_a_p_that_one_look_alone_may_reject_is_rejected_at_no_later_one() -> None:
    """The level of a fixed sample, 0.001, is more than any look of four may spend."""
    assert after(measured(0.0009, 0.15), plan=Plan()).rejected == ()
    assert after(measured(0.0009, 0.15), plan=Plan(draws=1)).rejected == (MEAN,)
    assert after(measured(0.5, 0.0), measured(0.0003, 0.15), plan=Plan()).rejected == ()
    assert after(measured(0.0003, 0.15), plan=Plan()).rejected == (MEAN,)


def test_a_doubt_at_the_cap_is_none() -> None:
    looks = [measured(0.005, 0.0)] * 4
    assert after(*looks[:3], plan=Plan()).doubtful == (MEAN,)
    result = after(*looks, plan=Plan())
    assert not result.doubtful and not result.wants_more and result.outcomes == {"length": "equal"}


def test_nothing_is_drawn_for_what_all_draws_could_not_show() -> None:
    plan = Plan(margin=0.2)
    within_reach, out_of_reach = measured(0.5, 0.05, 0.08), measured(0.5, 0.05, 0.3)
    assert after(within_reach, plan=plan).wants_more
    result = after(out_of_reach, plan=plan)
    assert result.undecided == ["length"] and not result.wants_more


def test_each_undecided_quantity_says_its_own_number() -> None:
    numbers = {"length": 5231, "reward": 623}
    quantities = {
        name: Quantity(UNDECIDED, (1.0, 2.0), 1024, 0.1, 0.1, 0.2, 1.0, 0.4, 0.4, 900, needed, 0.3)
        for name, needed in numbers.items()
    }
    quantities["surprisal"] = Quantity(EQUAL, (1.0, 1.0), 1024, 0.0, 0.1, 0.2, 1.0, 0.0, 0.0, 900, 900, 0.3)
    looks = (Look(1, (1024, 1024), 0.001, 0.05, {}, (), (), ()),)
    result = NativeResult(looks, quantities=quantities, draws=1, most=1024, samples=(1024, 1024))
    length, reward, surprisal = (
        next(line for line in result.sentences() if line.startswith(name)) for name in quantities
    )
    assert "5,300" in length and "630" in reward
    assert "1,024 samples" in length and "equal" in surprisal
    assert not any(line.startswith("surprisal undecided") for line in result.sentences())
    assert "finish not recorded" in result.summary()
    assert result.remedy() == " (--set native.samples=5300)"


def test_a_quantitys_sentence_has_both_means_its_outcome_and_the_p_of_what_was_shown() -> None:
    statistic = Statistic.of("reward", "mean")
    quantities = {
        "length": Quantity(EQUAL, (10.25, 10.5), 1024, 0.0, 0.1, 0.2, 1.0, 0.0, 0.002, 900, 900, 0.3),
        "reward": Quantity(DIFFERENT, (0.5, 0.75), 1024, 0.1, 0.1, 0.2, 1.0, 0.4, 0.4, 900, 900, 0.3),
    }
    looks = (Look(1, (1024, 1024), 0.001, 0.05, {}, (statistic,), (), ()),)
    tests = {statistic: {"statistic": 5.0, "p": 1e-5, "p_holm": 3e-5}}
    result = NativeResult(looks, tests, quantities, draws=1, most=1024, samples=(1024, 1024))
    numbers = [re.findall(r"\d[\d.e-]*", sentence) for sentence in result.sentences()[1:3]]
    assert numbers == [["10.2", "10.5", "0.002"], ["0.5", "0.75", "3e-05"]]
    outcomes = [
        quantity.outcome in sentence
        for quantity, sentence in zip(quantities.values(), result.sentences()[1:3], strict=True)
    ]
    assert outcomes == [True, True]


def test_a_difference_beyond_all_permutations_has_a_p_far_below_one_of_them() -> None:
    rng = np.random.default_rng(0)
    apart = rng.normal(0, 1, (2000, 3))
    apart[0] = 9.0, 0.0, 0.0
    far = p_value(np.abs(apart).max(axis=1), apart)
    assert far["p"] == pytest.approx(3 * 2 * stats.norm.sf(far["errors"])) and far["p"] < 1e-15
    apart[0] = 1.0
    near = p_value(np.abs(apart).max(axis=1), apart)
    assert near["p"] == pytest.approx(1 - (1 - 2 * stats.norm.sf(1.0)) ** 3, abs=0.04)
