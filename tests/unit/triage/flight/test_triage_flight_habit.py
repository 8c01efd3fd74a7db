"""What a rank has always done next: told from its own operations, and only where one thing alone ever followed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.triage.evidence import Group
from harness.triage.flight.flight import Flight, integers
from harness.triage.flight.habit import LEAST, habit
from harness.triage.flight.model import Habit
from harness.triage.flight.operations import Kind

GROUPS = (Group("tp", (0, 1), desc="tensor parallel"), Group("world", (0, 1, 2, 3), desc="world"))
REDUCE = Kind("all_reduce", ((8,),), (), ("float32",), ())


def flown(calls: str, *, done: bool = False) -> Flight:
    """A rank that called its groups in this order: t or w; the last call is not done."""
    size = len(calls)
    return Flight(
        "rank", 0, groups=GROUPS, kinds=(REDUCE,), record=integers(range(size)),
        group=integers("tw".index(one) for one in calls), seq=integers(range(size)), kind=integers([0] * size),
        stack=integers([-1] * size), created_ns=integers([0] * size), timeout_ms=integers([-1] * size),
        done=bytes([1] * (size - 1) + [int(done)]), started=bytes([1] * size), p2p=bytes(size),
    )  # fmt: skip


def found(calls: str) -> Habit:
    its = habit(flown(calls))
    assert its is not None
    return its


@given(st.integers(1, 200), st.integers(1, 3), st.integers(LEAST + 2, 9), st.data())
def test_the_next_call_of_a_regular_rank_is_known(inner: int, outer: int, rounds: int, data: st.DataObject) -> None:
    """However long a round is: a model of 80 layers calls its group 160 times."""
    round_ = "t" * inner + "w" * outer
    done = round_ * rounds + round_[: data.draw(st.integers(0, len(round_) - 1))]
    regular = (round_ * (rounds + 1))[: len(done) + 1]
    kept = found(regular)
    assert kept.kept and kept.times >= LEAST
    departed = found(done + {"t": "w", "w": "t"}[regular[-1]])
    assert not departed.kept and departed.group == kept.group and departed.times >= LEAST


@pytest.mark.parametrize("calls", ["", "t", "tttw", "tttwtttw", "twwtwttwtwwttwwtwtt"])
def test_too_few_or_irregular_calls_make_no_habit(calls: str) -> None:
    assert not calls or habit(flown(calls)) is None or found(calls).kept
    assert calls or habit(Flight("rank")) is None


def test_a_rank_that_waits_in_nothing_has_none() -> None:
    assert habit(flown("tttw" * 8, done=True)) is None


def test_ranks_do_the_same_work_where_their_calls_are_as_many() -> None:
    one, behind, other = found("tttw" * 12), found(("tttw" * 12)[:-3]), found("ttw" * 16)
    assert one.does_same_work(one) and one.does_same_work(behind) and behind.does_same_work(one)
    assert not one.does_same_work(other) and not one.does_same_work(replace(one, counts={}))


@pytest.mark.parametrize(
    ("last", "kept", "cut"),
    [("tw", False, True), ("tttw", True, False), ("tttt", False, False), ("w", False, False), ("tt", True, False)],
)
def test_only_a_run_that_was_begun_can_be_cut(last: str, kept: bool, cut: bool) -> None:
    its = found("tttw" * (LEAST + 2) + last)
    assert (its.kept, its.cut) == (kept, cut)
