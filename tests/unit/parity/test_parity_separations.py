"""The property that separates what differs from what does not is found among all, and chance separates nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.parity.facts.align import AlignedTokens, Match
from harness.parity.subjects.log_probabilities.observed_properties import StepTokens
from harness.parity.subjects.log_probabilities.observed_separations import Separation, Sums, count, separations
from harness.recordings.tables import Rows, Table

SAMPLES = 60
END = 2


class Drawn(NamedTuple):
    """The tokens of a step, flat, with what planted differences refer to."""

    step: StepTokens
    row: np.ndarray
    position: np.ndarray
    ids: np.ndarray
    prompt_length: np.ndarray  # of each row


def ragged(lengths: np.ndarray, values: np.ndarray) -> Rows:
    return Rows(values, np.concatenate([[0], np.cumsum(lengths)]))


def drawn(seed: int, step: int = 0) -> Drawn:
    """Sixty samples in groups of four, recorded by three ranks, in an order of their own."""
    rng = np.random.default_rng(seed)
    lengths, groups = rng.integers(4, 40, SAMPLES), rng.integers(5, 30, SAMPLES // 4)
    prompt_lengths = np.repeat(groups, 4)
    prompts = [np.repeat(10_000 + group, length) for group, length in enumerate(prompt_lengths.tolist())]
    prompts = [prompts[4 * (number // 4)] for number in range(SAMPLES)]
    ids = rng.integers(3, 30, lengths.sum())
    stops = rng.random(SAMPLES) < 0.5
    ids[np.cumsum(lengths)[stops] - 1] = END
    columns = {"prompt": ragged(prompt_lengths, np.concatenate(prompts)), "output": ragged(lengths, ids)}
    finish = np.where(stops, "stop", "length")
    table = Table("rollout", step, np.arange(SAMPLES), np.arange(SAMPLES) % 3, {}, columns, finish)
    match = Match.of(table.sample, table.sample)
    tokens = AlignedTokens.of(table, table, match, columns["output"], columns["output"])
    numbers = -rng.exponential(1.0, len(ids))
    step_tokens = StepTokens(tokens, numbers, numbers, (np.arange(SAMPLES) % 4 == 3).astype(np.int64), (END,))
    return Drawn(step_tokens, tokens.grid.row, tokens.grid.position, ids, prompt_lengths)


PLANTED: dict[str, Callable[[Drawn], np.ndarray]] = {
    "end tokens of samples that stopped": lambda it: it.ids == END,
    "first tokens of responses": lambda it: it.position == 0,
    "samples of rank 1": lambda it: it.row % 3 == 1,
    "tokens with the id 17": lambda it: it.ids == 17,
    "samples in place 2 of their group": lambda it: it.row % 4 == 2,
    "samples whose prompt an earlier sample of the step has": lambda it: it.row % 4 > 0,
    "samples with cached tokens": lambda it: it.row % 4 == 3,
    "tokens with 30 and more tokens before them": lambda it: it.position + it.prompt_length[it.row] >= 30,
    "tokens with 12 and more tokens of the response before them": lambda it: it.position >= 12,
    "tokens with at most 3 tokens of the response before them": lambda it: it.position <= 3,
}


def found(*steps: tuple[Drawn, np.ndarray]) -> tuple[Separation, ...]:
    sums: Sums = {}
    for it, differs in steps:
        count(sums, it.step, differs, np.ones(len(differs), bool))
    return separations(sums)


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANTED)
@pytest.mark.parametrize("share", [1.0, 0.6])
def test_the_property_that_was_planted_leads(name: str, share: float) -> None:
    """Where all that has it differs, and where three in five of it do."""
    steps = []
    for seed in (1, 2):
        it = drawn(seed)
        has = PLANTED[name](it)
        unit = it.row if name.startswith("samples") else np.arange(len(has))
        steps.append((it, has & (np.random.default_rng(seed).random(unit.max() + 1) < share)[unit]))
    first = found(*steps)[0]
    # The prefix is shared by all but the first of a group, and cached for the last: both say the same of their tokens.
    assert first.exact and first.having_differing == first.differing
    assert first.complete is (share == 1.0)
    assert first.name == name


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**31), share=st.floats(0.05, 0.95))
def test_differences_that_stand_anywhere_are_separated_by_nothing(seed: int, share: float) -> None:
    it = drawn(seed)
    assert found((it, np.random.default_rng(seed).random(len(it.ids)) < share)) == ()


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**31))
def test_samples_that_differ_by_chance_are_separated_by_nothing(seed: int) -> None:
    """All tokens of a sample differ, or none: the tokens are no independent evidence."""
    it = drawn(seed)
    wrong = np.random.default_rng(seed).random(SAMPLES) < 0.5
    assert found((it, wrong[it.row])) == ()


def test_a_property_that_some_others_share_is_given_as_a_ratio_with_its_interval() -> None:
    steps = []
    for seed in range(6):
        it = drawn(seed)
        chance = np.where(it.ids == END, 0.6, 0.05)
        steps.append((it, np.random.default_rng(seed).random(len(it.ids)) < chance))
    [only] = found(*steps)
    assert not only.exact and only.ratio is not None
    times, low, high = only.ratio
    assert low < 12 < high and low <= times <= high
    assert only.name in ("end tokens of samples that stopped", "special tokens")


@pytest.mark.slow
def test_the_interval_of_a_ratio_holds_the_true_ratio_where_tokens_of_a_sample_go_together() -> None:
    """Of 200 recordings whose samples differ as a whole or not at all, with a true ratio of 1 for first tokens."""
    outside = 0
    for seed in range(200):
        it = drawn(seed)
        rng = np.random.default_rng(10_000 + seed)
        prone = (rng.random(SAMPLES) < 0.4)[it.row]
        outside += bool(found((it, prone & (rng.random(len(it.ids)) < 0.7))))
    assert outside <= 10


def test_what_a_step_does_not_record_is_no_property_of_the_run() -> None:
    it, other = drawn(1), drawn(2)
    del other.step.tokens.a.columns["prompt"]
    has = [PLANTED["samples in place 2 of their group"](each) for each in (it, other)]
    assert all("group" not in each.name for each in found((it, has[0]), (other, has[1])))
