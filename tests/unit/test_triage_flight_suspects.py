"""The dumps' own opinion: each planted fault on every rank, rank 0 included, and nobody where nobody is to blame."""

from __future__ import annotations

from typing import Any

import pytest
from flight_support import entry, faulty, flight, of_job

from harness.triage.flight import compare, suspects
from harness.triage.flight.suspects import HINTS, Opinion, components

NAMED = ["skip", "extra", "wrong-op", "wrong-size", "dead", "straggler", "stalled"]


def opinion(kind: Any, rank: int, at: int, **shape: int) -> Opinion:
    return suspects(compare(of_job(faulty(kind, rank, at, **shape))))


@pytest.mark.parametrize("rank", range(8))
@pytest.mark.parametrize("kind", NAMED)
def test_the_culprit_is_named_and_nobody_else(kind: str, rank: int) -> None:
    for at in (47, 48, 52, 53):  # in the world's group, in tp, and twice in dp
        found = opinion(kind, rank, at, ranks=8, tensor_parallel=2)
        assert found.ranks == {rank}, (kind, rank, at, found)
        assert found.hint in HINTS and "\n" not in found.reason and str(rank) in found.reason


@pytest.mark.parametrize("kind", ["skip", "extra", "wrong-op", "wrong-size"])
def test_a_tie_is_broken_by_the_sibling_groups(kind: str) -> None:
    """dp groups of two: rank 1 and rank 9 differ, and the other seven pairs did what rank 9 did."""
    found = opinion(kind, 1, 52, ranks=16, tensor_parallel=8)
    assert (found.ranks, found.hint) == ({1}, "mismatch")


@pytest.mark.parametrize("rank", [0, 1])
def test_two_ranks_that_differ_blame_nobody(rank: int) -> None:
    found = opinion("wrong-op", rank, 48, ranks=2, tensor_parallel=2)
    assert (found.ranks, found.hint) == (frozenset(), "mismatch") and "do not say which" in found.reason


def test_two_ranks_of_which_one_lags_blame_that_one() -> None:
    ahead = [entry(1), entry(2), entry(3, "broadcast", done=False)]
    lagging = [entry(1), entry(2, done=False), entry(3, "reduce", done=False)]
    assert suspects(compare([flight(0, ahead), flight(1, lagging)])).ranks == {1}
    assert suspects(compare([flight(0, lagging), flight(1, ahead)])).ranks == {0}


@pytest.mark.parametrize("rank", [0, 3, 7])
def test_an_order_inversion_is_a_cycle_of_nobody(rank: int) -> None:
    for at in (47, 54):  # against the world; a swap of tp and dp at 51 would resolve itself
        found = opinion("abba", rank, at, ranks=8, tensor_parallel=2)
        assert (found.ranks, found.hint) == (frozenset(), "cycle"), found
        assert str(rank) in found.reason


@pytest.mark.parametrize("at", [47, 48, 52])
def test_a_symmetric_wedge_names_nobody(at: int) -> None:
    found = opinion("wedge", 3, at)
    assert (found.ranks, found.hint) == (frozenset(), "wedge")


@pytest.mark.parametrize("rank", [0, 5, 15])
def test_a_missing_dump_is_insufficient_by_name(rank: int) -> None:
    found = opinion("missing", rank, 48)
    assert (found.ranks, found.hint) == (frozenset(), "insufficient")
    assert f"no recorder data from rank {rank}" in found.reason


def test_a_healthy_job_has_no_suspect() -> None:
    assert opinion("healthy", 0, 0) == (frozenset(), "", "no operation is pending")


def test_victims_of_victims_are_followed_to_the_root() -> None:
    """3 waits in c for 4; 2 in b for 3; 1 in a for 2; everyone else in the world for 1."""
    groups = {"1": ("a", (1, 2)), "2": ("b", (2, 3)), "3": ("c", (3, 4))}
    busy = {0: ["0", "default_pg"], 1: ["1", "a"], 2: ["2", "b"], 3: ["3", "c"]}
    flights = [flight(rank, [entry(1, group=group, done=False)], 5, **groups) for rank, group in busy.items()]
    flights.append(flight(4, [entry(1, group=["9", "elsewhere"])], 5, **groups))
    found = suspects(compare(flights))
    assert (found.ranks, found.hint) == ({4}, "host") and "all_reduce #1 of group 3 (c)" in found.reason


def test_one_rank_in_an_operation_that_nobody_wants_is_the_odd_one() -> None:
    idle = [entry(1), entry(2)]
    flights = [flight(rank, [*idle, *([entry(3, done=False)] if rank == 0 else [])], 4) for rank in range(4)]
    found = suspects(compare(flights))
    assert (found.ranks, found.hint) == ({0}, "alone")
    two = [flight(rank, [*idle, *([entry(3, done=False)] if rank == 0 else [])], 2) for rank in range(2)]
    assert suspects(compare(two))[:2] == ({1}, "host")  # of two, the one that has not come


def test_a_mismatch_that_went_through_explains_no_stall() -> None:
    first = [entry(1), entry(2, done=False)]
    second = [entry(1, sizes=([[9]], [[9]]))]
    went = compare([flight(0, [entry(1)]), flight(1, second)])
    assert went.groups[0].mismatches and suspects(went).hint == ""
    assert suspects(compare([flight(0, first), flight(1, second)])).hint == "mismatch"  # here somebody waits behind it


def test_dumps_of_two_jobs_have_no_opinion() -> None:
    flights = [flight(0, [entry(1, done=False)], 2), flight(0, [entry(1, done=False)], 3)]
    mixed = {f"{number}": one for number, one in enumerate(flights)}
    assert suspects(compare(mixed)).hint == "jobs"


def test_components_of_a_deep_chain_need_no_recursion() -> None:
    chain: dict[Any, list[Any]] = {number: [number + 1] for number in range(5000)}
    chain[5000] = [4990]
    found = components(chain)
    assert max(map(len, found)) == 11 and sum(map(len, found)) == 5001
