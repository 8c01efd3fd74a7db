"""Ranks side by side: what may differ by design, what may not, and what the dumps cannot say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from flight_support import entry, faulty, flight, of_job, said

from harness.triage.evidence import Evidence, Group
from harness.triage.flight.compare import compare, laggards, without_entry
from harness.triage.flight.loading import Flights, load_directory
from harness.triage.flight.model import Comparison
from harness.triage.flight.operations import peers
from harness.triage.judge import triage

REAL = Path(__file__).resolve().parents[3] / "fixtures" / "flight"
PAIR = ([[8]], [[8]])


def real(case: str, *, memberships: bool = True) -> Comparison:
    groups = json.loads((REAL / f"gloo-{case}" / "groups.json").read_text())
    said = [Group(one["name"], tuple(one["members"]), one["backend"], one["desc"]) for one in groups]
    return compare(load_directory(REAL / f"gloo-{case}"), said if memberships else ())


def pair(first: dict[str, Any], second: dict[str, Any], **more: Any) -> Comparison:
    return compare([flight(0, [first], **more), flight(1, [second], **more)])


def test_a_healthy_job_agrees() -> None:
    compared = compare(of_job(faulty("healthy", 0, 0)))
    assert (compared.world_size, compared.jobs, compared.missing, compared.versions) == (16, 1, (), ("2.10",))
    assert [state.group.desc for state in compared.groups] == ["default_pg"] + ["tp"] * 4 + ["dp"] * 4
    for state in compared.groups:
        assert not (state.waiting or state.mismatches or state.silent or state.absent)
        assert {one.enqueued for one in state.ranks.values()} == {one.completed for one in state.ranks.values()}
    assert compared.groups[1].group.members == (0, 1, 2, 3)
    assert compared.groups[0].ranks[5].key == "rank5"


def test_where_each_rank_stands() -> None:
    compared = compare(of_job(faulty("dead", 5, 40)))  # operation 40 is the sixth step's first, in tp
    tp = compared.groups[2]
    assert tp.group.members == (4, 5, 6, 7) and tp.waiting == (4, 6, 7)
    assert tp.ranks[5].pending is None and tp.ranks[5].enqueued == 25
    assert tp.ranks[4].pending is not None and tp.ranks[4].pending.seq == 26 and tp.ranks[4].completed == 25
    assert without_entry(tp) == {5} and laggards(tp) == frozenset()
    assert laggards(compared.groups[0]) == frozenset()


@pytest.mark.slow
@pytest.mark.parametrize("form", ["json", "pickle"])
@pytest.mark.parametrize(("kind", "field"), [("wrong-op", "op"), ("wrong-size", "sizes"), ("extra", "op")])
def test_the_first_mismatch_is_found(form: str, kind: Any, field: str) -> None:
    compared = compare(of_job(faulty(kind, 6, 48), form))
    [state] = [state for state in compared.groups if state.mismatches]
    first = state.mismatches[0]
    assert (state.group.members, first.seq, first.field) == ((4, 5, 6, 7), 31, field)
    assert sorted(first.values.values(), key=len)[0] == (6,)


@pytest.mark.parametrize(
    ("op", "first", "second"),
    [
        ("all_to_all", ([[8], [3]], [[4]]), ([[2], [9]], [[7]])),
        ("all_to_all_single", ([[8]], [[4]]), ([[2]], [[7]])),
        ("gather", ([[8]], [[2, 8]]), ([[8]], [])),
        ("scatter", ([[2, 8]], [[8]]), ([], [[8]])),
        ("broadcast", ([[8]], [[8]]), ([], [[8]])),
        ("broadcast", ([[8]], []), ([], [[8]])),
        ("all_gather", ([[5]], [[5], [3]]), ([[3]], [[5], [3]])),
        ("all_gather_v", ([[5]], [[8]]), ([[3]], [[5], [3]])),
        ("_all_gather_base", ([[8]], [[16]]), ([[8]], [[2, 8]])),
        ("reduce_scatter_v", ([[5], [3]], [[5]]), ([[5], [3]], [[3]])),
        ("all_reduce", ([[2, 4]], [[2, 4]]), ([[8]], [[8]])),
        ("barrier", ([], []), ([], [])),
    ],
)
def test_what_differs_by_design_is_no_mismatch(op: str, first: Any, second: Any) -> None:
    compared = pair(entry(1, op, first), entry(1, op, second))
    assert not compared.groups[0].mismatches


@pytest.mark.parametrize(
    ("first", "second", "field"),
    [
        (entry(1), entry(1, "broadcast"), "op"),
        (entry(1), entry(1, sizes=([[9]], [[9]])), "sizes"),
        (entry(1, "scatter", ([[16]], [[8]])), entry(1, "scatter", ([], [[7]])), "sizes"),
        (entry(1, "gather", ([[8]], [[16]])), entry(1, "gather", ([[7]], [])), "sizes"),
        (entry(1, "_reduce_scatter_base", ([[16]], [[8]])), entry(1, "_reduce_scatter_base", ([[14]], [[7]])), "sizes"),
        (entry(1, "all_gather", ([[8]], [[8], [8]])), entry(1, "all_gather", ([[8]], [[8], [9]])), "sizes"),
        (entry(1), {**entry(1), "input_dtypes": ["BFloat16"]}, "dtype"),
        (entry(1, "all_to_all"), {**entry(1, "all_to_all"), "input_dtypes": ["Long"]}, "dtype"),
    ],
)
def test_what_must_be_equal_is_compared(first: dict[str, Any], second: dict[str, Any], field: str) -> None:
    [mismatch] = pair(first, second).groups[0].mismatches
    assert mismatch.field == field and set(mismatch.values.values()) == {(0,), (1,)}


def test_only_the_first_mismatches_are_kept_of_a_shifted_sequence() -> None:
    ops = ["all_reduce", "broadcast"] * 20
    first = flight(0, [entry(seq, op) for seq, op in enumerate(ops, 1)])
    second = flight(1, [entry(seq, op) for seq, op in enumerate(ops[1:], 1)])
    [state] = compare([first, second]).groups
    assert [one.seq for one in state.mismatches] == list(range(1, 9))


def test_rings_that_do_not_overlap_are_said_and_not_compared() -> None:
    ahead = flight(0, [entry(seq, record=seq) for seq in range(3000, 3010)])
    behind = flight(1, [entry(seq, "broadcast", record=seq) for seq in range(100, 110)])
    compared = compare([ahead, behind])
    assert not compared.groups[0].mismatches
    assert any("rank 1 ends at #109" in note for note in compared.notes)
    waiting = flight(0, [entry(seq, record=seq, done=seq < 3009) for seq in range(3000, 3010)])
    assert said([waiting, behind]).ranks == {1}  # however old: it never enqueued #3009


def test_a_silent_member_whose_ring_overflowed_is_not_taken_for_late() -> None:
    members = {"1": ("tp", (0, 1))}
    waiting = flight(0, [entry(5, group=["1", "tp"], done=False)], **members)
    full = flight(1, [entry(seq, record=seq) for seq in range(500, 600)], **members)
    compared = compare([waiting, full])
    [state] = [one for one in compared.groups if one.group.name == "1"]
    assert state.silent == state.unsure == (1,) and without_entry(state) == frozenset()
    assert any("ring has overflowed" in note for note in compared.notes)
    assert said(compared).verdict == "INSUFFICIENT"
    fresh = flight(1, [entry(seq) for seq in range(1, 100)], **members)  # the control: its ring is whole
    assert said([waiting, fresh]).ranks == {1}


def test_operations_launched_as_one_count_as_one() -> None:
    def launched(sizes: list[int]) -> list[dict[str, Any]]:
        ops = [entry(1, "_all_gather_base", ([[n]], [[2 * n]]), record=i) for i, n in enumerate(sizes)]
        return [*ops, entry(1, "coalesced", ([], []), record=len(sizes)), entry(2, record=len(sizes) + 1)]

    [state] = compare([flight(0, launched([4, 5])), flight(1, launched([4, 5]))]).groups
    assert not state.mismatches and state.ranks[0].enqueued == 2
    differing = compare([flight(0, launched([4, 5])), flight(1, launched([4, 5, 6]))])
    assert not differing.groups[0].mismatches  # it went through: a note
    assert "differed at #1, coalesced(2 _all_gather_base) on rank 0" in differing.notes[-1]


def test_point_to_point_stands_apart() -> None:
    send = entry(0, "send 0->1", record=0, is_p2p=True, p2p_seq=1, done=False)
    receive = entry(0, "recv 1<-0", record=0, is_p2p=True, p2p_seq=1, done=False)
    [state] = pair(send, receive).groups
    assert not state.mismatches and not state.waiting
    assert state.p2p[0][0].op == "send 0->1" and state.p2p[1][0].p2p
    assert said(pair(send, receive)).ranks == frozenset()
    lonely = compare([flight(0, [send]), flight(1, [entry(1)])])
    assert said(lonely).ranks == {1}
    assert (peers("send 3->0"), peers("recv 0<-3"), peers("broadcast")) == ((3, 0), (3, 0), None)
    for number in ("9" * 5000, "²", "1000001", ""):
        assert peers(f"recv 1<-{number}") is None and peers(f"send {number}->1") is None


def test_a_missing_dump_is_named() -> None:
    compared = compare(of_job(faulty("missing", 9, 40)))
    assert compared.absent == (9,) and compared.missing == ("no recorder data from rank 9",)
    assert all(9 in state.absent for state in compared.groups if 9 in state.group.members)
    assert not any(9 in state.silent for state in compared.groups)


def test_formats_that_differ_are_said() -> None:
    flights = of_job(faulty("healthy", 0, 0, ranks=2, tensor_parallel=1))
    one = flights["rank1"]
    changed = Flights()
    changed.update(rank0=flights["rank0"], rank1=type(one)(**{**vars(one), "version": "2.4"}))
    compared = compare(changed)
    assert compared.versions == ("2.10", "2.4") and "formats differ" in compared.notes[-1]


def test_keys_name_the_flights() -> None:
    keyed = {"host:12": flight(0, [entry(1)]), "host:13": flight(1, [entry(1)])}
    assert compare(keyed).groups[0].ranks[1].key == "host:13"
    assert compare([flight(0, [entry(1)]), flight(0, [entry(1)])]).jobs == 2  # the same name twice loses nothing


def test_a_group_that_spans_two_worlds_is_compared_on_its_own() -> None:
    """Trainer 0 broadcasts weights to engine ranks 0 and 1, of another world; the second one never came."""
    sync = {"group": ["weights", "weight_sync"]}
    trainer = [entry(1), entry(1, "broadcast", record=1, done=False, **sync)]
    engine = [entry(1), entry(1, "broadcast", record=1, done=False, **sync)]
    processes = [flight(0, trainer, 1), flight(0, engine, 2), flight(1, [entry(1)], 2)]
    assert compare({str(i): one for i, one in enumerate(processes)}).jobs == 2
    alone = {f"p{place}": one.only("weight_sync", place) for place, one in enumerate(processes)}
    compared = compare(alone, [Group("weights", (0, 1, 2))])
    assert [state.group.name for state in compared.groups] == ["weights"]
    assert said(compared).ranks == {2}


def test_no_dumps_at_all() -> None:
    compared = compare([])
    assert compared == Comparison((), ())
    assert said(compared).verdict == "INSUFFICIENT"


@pytest.mark.parametrize("memberships", [True, False])
def test_real_gloo_operations_that_differ_by_design_agree(memberships: bool) -> None:
    """gather, scatter, reduce, all_gather, objects of other lengths, all_to_all with uneven splits, torch 2.13."""
    compared = real("legitimate", memberships=memberships)
    assert not [state.mismatches for state in compared.groups if state.mismatches]
    verdict = said(compared)
    if memberships:
        assert verdict.verdict == "INSUFFICIENT" and "recorded collective" in verdict.reason
    else:  # nothing says that these four ranks are all
        assert verdict.verdict == "INSUFFICIENT" and "were not recorded" in verdict.reason


def test_gloo_groups_get_their_members_from_the_record() -> None:
    with_members, without = real("absent-rank"), real("absent-rank", memberships=False)
    assert [state.group.members for state in with_members.groups] == [(0, 1, 2, 3), (0, 1), (2, 3)]
    assert with_members.world_size == 4 and not with_members.missing
    assert [state.group.members for state in without.groups] == [(), (), ()]
    assert any("group 1 (tp)" in item for item in without.missing)
    named = [Group("tp", (0, 1)), Group("tp", (2, 3)), Group("default_pg", (0, 1, 2, 3))]  # by description
    described = compare(load_directory(REAL / "gloo-absent-rank"), named)
    assert [state.group.members for state in described.groups] == [(0, 1, 2, 3), (0, 1), (2, 3)]


def test_gloo_without_members_abstains_where_only_they_would_tell() -> None:
    """Rank 3's dump is gone and nobody recorded the groups: who is missing cannot be known."""
    flights = load_directory(REAL / "gloo-late-start")
    del flights["rank3.json"]
    found = said(flights)
    assert not found.ranks and found.verdict == "INSUFFICIENT"


@pytest.mark.parametrize(
    ("case", "ranks", "kind", "verdict"),
    [("extra-broadcast", {2}, "K1", "HUNG"), ("absent-rank", {1}, "K4", "HUNG"), ("late-start", {3}, "K4", "HUNG"),
     ("order-inversion", set(), "K2", "HUNG"), ("recorder-off", set(), "", "INSUFFICIENT"),
     ("legitimate", set(), "", "INSUFFICIENT")],
)  # fmt: skip
def test_real_gloo_hangs(case: str, ranks: set[int], kind: str, verdict: str) -> None:
    assert said(real(case))[:3] == (ranks, kind, verdict)


def test_the_oldest_pending_operation_says_whom_it_waits_for() -> None:
    evidence = Evidence("", "dumps", "", 0.0)
    verdict = triage(evidence, real("late-start"))
    assert verdict.triage is not None
    waits = {(one.waiter, one.target, one.because.split(": ")[0]) for one in verdict.triage.waits}
    four, five = "all_reduce #4 of tp", "all_reduce #5 of default_pg"
    assert waits == {
        ("rank 0", "rank 2", five), ("rank 0", "rank 3", five), ("rank 1", "rank 2", five), ("rank 1", "rank 3", five),
        ("rank 2", "rank 3", four),
    }  # fmt: skip
