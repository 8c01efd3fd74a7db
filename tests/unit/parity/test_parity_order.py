"""The order of rules: each has a place and a reason, and nothing about it is left to chance."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import pytest

from harness.parity import subjects, suspected
from harness.parity.attribution.live import interventions
from harness.parity.attribution.reference import trials
from harness.parity.causes import unexplained
from harness.parity.causes.turns import Turn, contests, in_order
from harness.parity.explain import rules as every_rule


def function(name: str) -> Turn:
    def run() -> None: ...

    run.__name__ = name
    return Turn(run, "", "")


def turn(name: str, after: str, *, competes: bool = False) -> Turn:
    return Turn(function(name).run, after, f"{name} needs what {after} leaves", competes=competes)


def test_each_rule_has_one_place_and_a_reason() -> None:
    modules = [*subjects.modules("causes"), *subjects.modules("explain"), suspected, unexplained]
    written = {
        function
        for module in modules
        for name, function in inspect.getmembers(module, inspect.isfunction)
        if function.__module__ == module.__name__ and not name.startswith("_")
        and list(inspect.signature(function).parameters) == ["e", "so_far"]
    }  # fmt: skip
    listed = [one.run for one in every_rule()]
    assert len(listed) == len(set(listed)) and set(listed) == written
    assert all(one.because for one in every_rule())


@pytest.mark.parametrize("listed", [every_rule, trials, interventions])
def test_no_two_follow_the_same_one(listed: Callable[[], tuple[Turn, ...]]) -> None:
    turns = listed()
    assert [one.after for one in turns] == ["", *(one.name for one in turns[:-1])]
    assert all(one.because for one in turns)


def test_another_package_puts_its_own_between_two() -> None:
    ours = [turn("second", "first"), function("first"), turn("third", "second")]
    theirs = [turn("mine", "first"), turn("also", "mine")]
    assert [one.name for one in in_order([*theirs, *ours])] == ["first", "mine", "also", "second", "third"]
    assert [one.name for one in in_order([*ours, turn("last", "third")])] == ["first", "second", "third", "last"]


def test_what_comes_between_does_not_part_those_that_compete() -> None:
    first, second, mine = turn("first", ""), turn("second", "first", competes=True), turn("mine", "first")
    ordered = in_order([first, second, turn("third", "second"), mine])
    assert [one.name for one in ordered] == ["first", "mine", "second", "third"]
    assert [[one.name for one in row] for row in contests(ordered)] == [["first", "second"], ["mine"], ["third"]]


@pytest.mark.parametrize(
    ("turns", "said"),
    [
        ([function("a"), turn("b", "c")], "'b' follows 'c', which is not listed"),
        ([function("a"), turn("b", "c"), turn("c", "b")], "follows it in turn"),
        ([function("a"), turn("a", "b")], "two functions are named 'a'"),
    ],
)
def test_a_place_that_is_none_is_refused(turns: list[Turn], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        in_order(turns)
