"""What `harness triage DIR` says of dumps alone: each planted fault on every rank; nobody where none is to blame."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from flight_support import Said, entry, faulty, flight, of_job, said

from harness.triage.flight.compare import compare
from harness.triage.flight.decode import decode
from harness.triage.flight.flight import Flight
from harness.triage.flight.worker import packed, unpacked

NAMED = ["skip", "extra", "wrong-op", "wrong-size", "dead", "straggler", "stalled"]


def of(kind: Any, rank: int, at: int, **shape: int) -> Said:
    return said(of_job(faulty(kind, rank, at, **shape)))


@pytest.mark.by_day(20)
@pytest.mark.slow
@pytest.mark.parametrize("rank", range(8))
@pytest.mark.parametrize("kind", NAMED)
def test_the_culprit_is_named_and_nobody_else(kind: str, rank: int) -> None:
    for at in (47, 48, 52, 53):  # in the world's group, in tp, and twice in dp
        found = of(kind, rank, at, ranks=8, tensor_parallel=2)
        assert found.ranks == {rank} and found.verdict == "HUNG", (kind, rank, at, found)
        assert "\n" not in found.reason and str(rank) in found.reason


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["skip", "extra", "wrong-op", "wrong-size"])
def test_a_tie_is_broken_by_the_sibling_groups(kind: str) -> None:
    """dp groups of two: rank 1 and rank 9 differ, and the other seven pairs did what rank 9 did."""
    found = of(kind, 1, 52, ranks=16, tensor_parallel=8)
    assert (found.ranks, found.kind) == ({1}, "K1")


@pytest.mark.parametrize("rank", [0, 1])
def test_two_ranks_that_differ_blame_nobody(rank: int) -> None:
    found = of("wrong-op", rank, 48, ranks=2, tensor_parallel=2)
    assert (found.ranks, found.kind) == (frozenset(), "K1") and "nobody is named" in found.reason


def test_two_ranks_of_which_one_lags_blame_that_one() -> None:
    ahead = [entry(1), entry(2), entry(3, "broadcast", done=False)]
    lagging = [entry(1), entry(2, done=False), entry(3, "reduce", done=False)]
    assert said([flight(0, ahead), flight(1, lagging)]).ranks == {1}
    assert said([flight(0, lagging), flight(1, ahead)]).ranks == {0}


def test_on_gloo_a_lag_breaks_no_tie() -> None:
    """A sender of gloo's is done before its receivers: who has completed less may be the one that is right."""
    ahead = [entry(1, backend="gloo"), entry(2, "broadcast", done=False, backend="gloo")]
    behind = [entry(1, done=False, backend="gloo"), entry(2, "reduce", done=False, backend="gloo")]
    assert said([flight(0, ahead), flight(1, behind)]).ranks == frozenset()


@pytest.mark.parametrize("rank", [0, 3, 7])
def test_an_order_inversion_is_a_cycle_of_nobody(rank: int) -> None:
    for at in (47, 54):  # against the world; a swap of tp and dp at 51 would resolve itself
        found = of("abba", rank, at, ranks=8, tensor_parallel=2)
        assert (found.ranks, found.kind) == (frozenset(), "K2"), found
        assert str(rank) in found.reason


@pytest.mark.slow
@pytest.mark.parametrize("at", [47, 48, 52])
def test_a_symmetric_wedge_names_nobody(at: int) -> None:
    found = of("wedge", 3, at)
    assert (found.ranks, found.kind) == (frozenset(), "K12")


@pytest.mark.parametrize("rank", [0, 5, 15])
def test_a_missing_dump_is_insufficient_by_name(rank: int) -> None:
    found = of("missing", rank, 48)
    assert (found.ranks, found.verdict) == (frozenset(), "INSUFFICIENT")
    assert f"no recorder data from rank {rank}" in found.reason


def test_a_healthy_job_has_no_suspect() -> None:
    assert of("healthy", 0, 0)[:3] == (frozenset(), "", "INSUFFICIENT")


def test_victims_of_victims_are_followed_to_the_root() -> None:
    """3 waits in c for 4; 2 in b for 3; 1 in a for 2; everyone else in the world for 1."""
    groups = {"1": ("a", (1, 2)), "2": ("b", (2, 3)), "3": ("c", (3, 4))}
    busy = {0: ["0", "default_pg"], 1: ["1", "a"], 2: ["2", "b"], 3: ["3", "c"]}
    flights = [flight(rank, [entry(1, group=group, done=False)], 5, **groups) for rank, group in busy.items()]
    flights.append(flight(4, [entry(1, group=["9", "elsewhere"])], 5, **groups))
    found = said(flights)
    assert (found.ranks, found.kind) == ({4}, "K4")


def test_one_rank_in_an_operation_that_nobody_wants_is_the_odd_one() -> None:
    idle = [entry(1), entry(2)]
    flights = [flight(rank, [*idle, *([entry(3, done=False)] if rank == 0 else [])], 4) for rank in range(4)]
    assert said(flights)[:2] == ({0}, "K1")
    two = [flight(rank, [*idle, *([entry(3, done=False)] if rank == 0 else [])], 2) for rank in range(2)]
    assert said(two)[:2] == ({1}, "K4")  # of two, the one that has not come


def test_a_mismatch_that_went_through_explains_no_stall() -> None:
    first = [entry(1), entry(2, done=False)]
    second = [entry(1, sizes=([[9]], [[9]]))]
    went = compare([flight(0, [entry(1)]), flight(1, second)])
    assert went.groups[0].mismatches and said(went).verdict == "INSUFFICIENT" and not said(went).ranks
    assert said([flight(0, first), flight(1, second)]).kind == "K1"  # here somebody waits behind it


def test_dumps_of_two_jobs_are_not_judged() -> None:
    flights = [flight(0, [entry(1, done=False)], 2), flight(0, [entry(1, done=False)], 3)]
    found = said({f"{number}": one for number, one in enumerate(flights)})
    assert found.verdict == "INSUFFICIENT" and "2 jobs" in found.reason


# --- pg_status: what torch counts itself, and keeps when the ring has nothing more


@pytest.mark.slow
@pytest.mark.parametrize("form", ["json", "pickle"])
@pytest.mark.parametrize("rank", [0, 5, 7])
def test_a_dump_of_active_operations_says_who_did_not_come(rank: int, form: str) -> None:
    """It holds nothing of the one that waits for nothing: that it completed all it enqueued stands in pg_status."""
    for at in (47, 48, 52):
        job = faulty("dead", rank, at, ranks=8, tensor_parallel=2)
        found = said(of_job(job, form, active=range(8)))
        assert (found.ranks, found.verdict) == ({rank}, "HUNG"), (rank, at, found)


def test_of_a_healthy_job_dumps_of_active_operations_blame_nobody() -> None:
    found = said(of_job(faulty("healthy", 0, 0, ranks=8, tensor_parallel=2), active=range(8)))
    assert found.ranks == frozenset() and found.verdict != "HUNG", found


def with_status(rank: int, entries: list[Any], enqueued: int, completed: int, backend: str = "nccl") -> Flight:
    name = "0" if backend == "nccl" else ""
    data = {
        "version": "2.10", "pg_config": {name: {"name": name, "desc": "default_pg", "ranks": "[0, 1]"}},
        "pg_status": {"0": {"last_enqueued_collective": str(enqueued), "last_started_collective": "-1",
                            "last_completed_collective": str(completed)}},
        "entries": entries,
    }  # fmt: skip
    return dataclasses.replace(decode(json.dumps(data).encode(), f"rank{rank}"), rank=rank)


@pytest.mark.parametrize("odd", [0, 1])
def test_an_empty_dump_that_lags_by_its_status_is_the_one(odd: int) -> None:
    """As in a public corpus: 88,683 enqueued and completed here, 88,688 enqueued there."""
    behind = with_status(odd, [], 88_683, 88_683)
    waiting = [entry(seq, record=seq, done=False) for seq in range(88_684, 88_689)]
    ahead = with_status(1 - odd, waiting, 88_688, 88_683)
    assert said([behind, ahead])[:3] == ({odd}, "K4", "HUNG")


def test_an_empty_dump_that_is_as_far_is_not() -> None:
    even = [with_status(rank, [], 88_683, 88_683) for rank in (0, 1)]
    assert said(even)[:3] == (set(), "", "INSUFFICIENT")


def test_a_status_of_gloo_is_not_believed() -> None:
    """It counts otherwise than its operations are numbered."""
    done = [entry(seq, backend="gloo") for seq in range(1, 6)]
    pending = [*done[:4], entry(5, backend="gloo", done=False)]
    compared = compare([with_status(0, pending, 40, 39, "gloo"), with_status(1, done[:4], 90, 90, "gloo")])
    [state] = compared.groups
    assert [one.enqueued for one in state.ranks.values()] == [5, 4]


def of_a_rank_before_its_device(enqueued: int) -> list[Flight]:
    """Rank 0 has recorded #5 and counts `enqueued` operations; rank 1 has started #5 and enqueued #6."""
    done, started = [entry(seq) for seq in range(1, 5)], entry(5, done=False, state="started")
    mine, ahead = [*done, entry(5, done=False)], [*done, started, entry(6, done=False)]
    return [with_status(0, mine, enqueued, 4), with_status(1, ahead, 6, 4)]


@pytest.mark.parametrize(("enqueued", "called"), [(4, True), (5, False), (2, False)])
def test_an_operation_that_is_recorded_and_not_counted_is_inside_its_call(enqueued: int, called: bool) -> None:
    flights = of_a_rank_before_its_device(enqueued)
    [group] = compare(flights).groups
    pending = [state.pending for state in group.ranks.values()]
    assert [operation is not None and operation.called for operation in pending] == [called, False]
    judged = said(flights)
    assert judged[:3] == ({0}, "K9", "HUNG") and ("all_reduce #5" in judged.reason.partition(";")[0]) is called


def test_a_status_of_another_form_is_left_out() -> None:
    data = {"version": "2.10", "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}},
            "pg_status": {"0": {"last": 1}, "x": 3}, "entries": [entry(1)]}  # fmt: skip
    assert decode(json.dumps(data).encode(), "rank0").status == {}


def test_members_that_cannot_be_read_are_missing() -> None:
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1"}}
    data = json.dumps({"version": "2.10", "pg_config": config, "entries": [entry(1)]}).encode()
    sound, damaged = flight(0, [entry(1)]), dataclasses.replace(decode(data, "rank1"), rank=1)
    assert unpacked(packed(damaged)).unread == damaged.unread != ()
    assert any("rank1: the members of group 0" in line for line in compare({"0": sound, "1": damaged}).missing)
    assert compare({"0": sound, "1": flight(1, [entry(1)])}).missing == ()
