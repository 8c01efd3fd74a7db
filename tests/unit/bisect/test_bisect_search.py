"""The searches of `harness bisect` as properties: the result, what it takes, and what cannot be told."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.bisect import minimal, ordered
from reports.bisect_model import Call


class Row:
    """Candidates of which those from `bad` on are bad; counts what was asked."""

    def __init__(self, bad: int, skipped: frozenset[int] = frozenset()) -> None:
        self.bad, self.skipped, self.asked = bad, skipped, []
        self.expected: list[int] = []

    def __call__(self, index: int, left: int) -> Call:
        self.asked.append(index)
        self.expected.append(left)
        return "skip" if index in self.skipped else "bad" if index >= self.bad else "good"


@pytest.mark.slow
@given(st.data())
def test_the_first_bad_one_is_found_in_few_comparisons(data: st.DataObject) -> None:
    count = data.draw(st.integers(2, 3000))
    row = Row(data.draw(st.integers(1, count - 1)))
    again = Row(row.bad)
    found = ordered.first_bad(count, row, again)
    assert found == ordered.Outcome(row.bad - 1, (row.bad,), confirmed=True)
    assert again.asked == [row.bad]
    assert len(row.asked) + len(again.asked) <= math.ceil(math.log2(count)) + 3
    assert set(row.asked[:2]) == {0, count - 1} and len(set(row.asked)) == len(row.asked)
    assert all(left >= len(row.asked) - place + 1 for place, left in enumerate(row.expected))  # an estimate from above


@pytest.mark.slow
@given(st.data())
def test_what_was_skipped_is_among_the_suspects_as_git_says_it(data: st.DataObject) -> None:
    count = data.draw(st.integers(2, 300))
    bad = data.draw(st.integers(1, count - 1))
    skipped = data.draw(st.frozensets(st.integers(1, count - 2), max_size=count)) if count > 2 else frozenset()
    row = Row(bad, skipped)
    found = ordered.first_bad(count, row, Row(bad))
    judged = [index for index in range(count) if index not in skipped]
    last_good = max(index for index in judged if index < bad)
    known_bad = min(index for index in judged if index >= bad)
    assert (found.last_good, found.suspects) == (last_good, tuple(range(last_good + 1, known_bad + 1)))
    assert bad in found.suspects and len(set(row.asked)) == len(row.asked)


@pytest.mark.slow
@given(st.integers(10, 2000), st.data())
def test_a_block_that_cannot_be_built_does_not_cost_a_step_each(count: int, data: st.DataObject) -> None:
    first = data.draw(st.integers(1, count - 2))
    last = data.draw(st.integers(first, count - 2))
    outside = [index for index in range(1, count) if not first <= index <= last]
    row = Row(data.draw(st.sampled_from(outside)), frozenset(range(first, last + 1)))
    ordered.first_bad(count, row, Row(row.bad))
    inside = [index for index in row.asked if index in row.skipped]
    if row.bad != last + 1:  # else every one of the block may be the first bad one, and each is tried
        assert len(inside) <= 2 * math.log2(count) + 2


@pytest.mark.parametrize(("bad", "skipped", "end"), [(0, (), 0), (9, (), 4), (2, (0,), 0), (2, (4,), 4)])
def test_an_end_that_is_not_what_it_was_said_to_be_ends_the_search(bad: int, skipped: tuple[int], end: int) -> None:
    row = Row(bad, frozenset(skipped))
    assert ordered.first_bad(5, row, row).wrong_end == end and len(row.asked) <= 2


def test_a_result_that_does_not_repeat_is_not_confirmed() -> None:
    assert not ordered.first_bad(9, Row(4), Row(99)).confirmed


# --- settings


class Differences:
    """Bad where all of one of `causes` are applied; counts what was asked."""

    def __init__(self, causes: list[frozenset[int]], skip: Callable[[frozenset[int]], bool] = lambda chosen: False):
        self.causes, self.skip, self.asked = causes, skip, []

    def __call__(self, chosen: frozenset[int], left: int) -> Call:
        self.asked.append(chosen)
        if self.skip(chosen):
            return "skip"
        return "bad" if any(cause <= chosen for cause in self.causes) else "good"


@given(st.data())
def test_one_cause(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 500))
    cause = data.draw(st.integers(0, count - 1))
    asked = Differences([frozenset({cause})])
    assert minimal.causes(count, asked) == minimal.Outcome(((cause,),), "good")
    # found within ceil(log2 n) + 3; one more says that there is no other
    assert len(asked.asked) <= math.ceil(math.log2(count)) + 4 and len(set(asked.asked)) == len(asked.asked)


@given(st.data())
def test_disjoint_causes_are_told_apart(data: st.DataObject) -> None:
    count = data.draw(st.integers(2, 40))
    order = data.draw(st.permutations(range(count)))
    sizes = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
    parts = [frozenset(order[sum(sizes[:at]) : sum(sizes[: at + 1])]) for at in range(len(sizes))]
    parts = [part for part in parts if part]
    found = minimal.causes(count, Differences(parts))
    assert {frozenset(cause) for cause in found.causes} == set(parts) and found.remainder == "good"


@given(st.integers(4, 500), st.data())
def test_an_interaction_of_two(count: int, data: st.DataObject) -> None:
    pair = data.draw(st.frozensets(st.integers(0, count - 1), min_size=2, max_size=2))
    asked = Differences([pair])
    assert minimal.causes(count, asked).causes == (tuple(sorted(pair)),)
    assert len(asked.asked) <= 2 * math.ceil(math.log2(count)) + 6


@given(st.data())
def test_every_cause_is_bad_and_minimal_whatever_the_verdict_does(data: st.DataObject) -> None:
    """Verdicts that are neither monotone nor always to be had."""
    count = data.draw(st.integers(1, 7))
    drawn: dict[frozenset[int], Call] = {frozenset(): "good", frozenset(range(count)): "bad"}

    def ask(chosen: frozenset[int], left: int) -> Call:
        if chosen not in drawn:
            drawn[chosen] = data.draw(st.sampled_from(("good", "bad", "skip")))
        return drawn[chosen]

    found = minimal.causes(count, ask)
    assert found.causes and found.remainder != "bad"
    for cause in found.causes:
        assert drawn[frozenset(cause)] == "bad"
        assert all(drawn[frozenset(cause) - {one}] != "bad" for one in cause)
    together = [one for cause in found.causes for one in cause]
    assert len(together) == len(set(together))
    assert drawn[frozenset(range(count)) - set(together)] == found.remainder


@given(st.integers(2, 30), st.data())
def test_settings_that_are_only_possible_together_are_kept_together(count: int, data: st.DataObject) -> None:
    pair = data.draw(st.frozensets(st.integers(0, count - 1), min_size=2, max_size=2))
    cause = data.draw(st.sampled_from(sorted(pair)))
    found = minimal.causes(count, Differences([frozenset({cause})], skip=lambda chosen: len(chosen & pair) == 1))
    assert found.causes == (tuple(sorted(pair)),)


@pytest.mark.parametrize(("calls", "end"), [({0: "bad", 3: "bad"}, 0), ({0: "good", 3: "skip"}, 3)])
def test_ends_of_settings_are_checked_first(calls: dict[int, Call], end: int) -> None:
    found = minimal.causes(3, lambda chosen, left: calls[len(chosen)])
    assert found.causes == () and found.wrong_end is not None and len(found.wrong_end) == end
