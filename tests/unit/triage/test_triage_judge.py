"""The trial of the judge: every kind found with its culprits, nobody blamed in a control, nothing by its number."""

from __future__ import annotations

import dataclasses
import json

import pytest
import triage_evidence as make
import triage_trial as trial
from hypothesis import given
from hypothesis import strategies as st

from harness.triage.judge import triage
from reports.model import TRIAGE_EXIT_CODES, Verdict

# Each test builds the cases of its world: parametrised by case, every collection took 0.3 s longer.
WORLDS = [(2, 0), (2, 1), (3, 0), (4, 2), (8, 7), (64, 0), (64, 31)]


def named(verdict):
    return {party.key for party in verdict.triage.culprits}


@pytest.mark.by_day(31)
@pytest.mark.slow
@pytest.mark.parametrize("kind", trial.KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize(("world", "odd"), WORLDS)
def test_a_planted_hang_is_found_with_its_kind_and_its_culprits(kind, world, odd):
    for case in kind(world, odd):
        verdict = triage(*case.built)
        assert (verdict.verdict, verdict.triage.hang) == (case.verdict, case.hang), (case.name, verdict.reason)
        assert named(verdict) == case.culprits, (case.name, verdict.reason)
        assert case.cycle <= set(verdict.triage.cycle), case.name
        assert all(case.frame in party.frame for party in verdict.triage.culprits), case.name
        assert not named(verdict) & {party.key for party in verdict.triage.victims}, case.name


@pytest.mark.slow
@pytest.mark.parametrize(("world", "odd"), WORLDS)
def test_nobody_is_blamed_in_a_control(world, odd):
    for case in trial.controls(world, odd):
        verdict = triage(*case.built)
        assert verdict.verdict == case.verdict, (case.name, verdict.reason)
        assert not verdict.triage.culprits and not verdict.triage.cycle, case.name
        assert verdict.exit_code == 0, case.name


@pytest.mark.by_day(11)
@pytest.mark.slow
@pytest.mark.parametrize("kind", trial.KINDS[:4], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize(("world", "odd"), WORLDS)
def test_a_verdict_is_whole(kind, world, odd):
    for case in kind(world, odd):
        verdict = triage(*case.built)
        assert verdict.kind == "triage" and verdict.exit_code == TRIAGE_EXIT_CODES[verdict.verdict], case.name
        assert verdict.reason and "\n" not in verdict.reason, case.name
        assert verdict.triage.next, case.name
        assert Verdict.from_dict(json.loads(verdict.to_json())).to_json() == verdict.to_json(), case.name
        keys = {node.key for node in verdict.triage.nodes}
        assert all({wait.waiter, wait.target} <= keys for wait in verdict.triage.waits), case.name


def relabelled(built, places):
    """The same job with its ranks numbered otherwise."""
    evidence, comparison = built
    processes = tuple(
        one if one.rank is None else dataclasses.replace(one, rank=places[one.rank]) for one in evidence.processes
    )
    if comparison is None:
        return dataclasses.replace(evidence, processes=processes), None

    def group(state):
        return dataclasses.replace(
            state,
            group=dataclasses.replace(state.group, members=tuple(sorted(places[one] for one in state.group.members))),
            ranks={places[one]: dataclasses.replace(its, rank=places[one]) for one, its in state.ranks.items()},
            absent=tuple(places[one] for one in state.absent),
            mismatches=tuple(
                dataclasses.replace(
                    odd, values={what: tuple(places[one] for one in ranks) for what, ranks in odd.values.items()}
                )
                for odd in state.mismatches
            ),
        )

    groups = tuple(map(group, comparison.groups))
    ranks = tuple(places[one] for one in comparison.ranks)
    return dataclasses.replace(evidence, processes=processes), dataclasses.replace(
        comparison, groups=groups, ranks=ranks
    )


keyed = [
    case
    for case in trial.everything(5, 2)
    if all(one.startswith(make.HOST) for one in case.culprits)
    and case.built[0].source != "dumps"
    and "K5" not in case.name
]


@pytest.mark.slow
@given(st.sampled_from(keyed), st.permutations(range(5)))
def test_ranks_are_numbers_only(case, places):
    before, after = triage(*case.built), triage(*relabelled(case.built, places))
    assert (after.verdict, after.triage.hang) == (before.verdict, before.triage.hang)
    assert named(after) == named(before)
    assert [party.rank for party in after.triage.culprits if party.rank is not None] == [
        places[party.rank] for party in before.triage.culprits if party.rank is not None
    ]


def without(built, lost):
    """The same job with the dump of one rank lost, and nothing else of that rank had either."""
    evidence, comparison = built
    processes = tuple(one for one in evidence.processes if one.rank != lost)
    if comparison is None:
        return dataclasses.replace(evidence, processes=processes, expected_world=5), None

    def group(state):
        ranks = {rank: its for rank, its in state.ranks.items() if rank != lost}
        odd = tuple(
            dataclasses.replace(one, values=values)
            for one in state.mismatches
            if len(
                values := {
                    what: rest
                    for what, ranks in one.values.items()
                    if (rest := tuple(rank for rank in ranks if rank != lost))
                }
            )
            > 1
        )
        absent = (*state.absent, lost) if lost in state.group.members else state.absent
        return dataclasses.replace(state, ranks=ranks, absent=tuple(sorted(set(absent))), mismatches=odd)

    groups = tuple(map(group, comparison.groups))
    ranks = tuple(one for one in comparison.ranks if one != lost)
    missing = (*comparison.missing, f"no recorder data from rank {lost}")
    return (
        dataclasses.replace(evidence, processes=processes, expected_world=5),
        dataclasses.replace(comparison, groups=groups, ranks=ranks, missing=missing),
    )


lossy = [
    case
    for case in (*trial.everything(5, 2), *trial.controls(5, 2))
    if not case.name.startswith("K5") and "joins" not in case.name
]


@given(st.sampled_from(lossy), st.integers(0, 4))
def test_a_lost_dump_makes_nobody_guilty(case, lost):
    verdict = triage(*without(case.built, lost))
    assert named(verdict) <= case.culprits, verdict.reason
    if verdict.verdict == "INSUFFICIENT" and case.built[1] is not None:
        assert any(str(lost) in item for item in verdict.missing)


def test_the_missing_one_is_named_when_it_decides():
    for odd in (0, 3):
        at = make.compared(
            make.group("0", {n: (17, "all_reduce") for n in range(4) if n != odd}, missing=[odd], keyed=False)
        )
        verdict = triage(make.evidence(source="dumps"), at)
        assert (verdict.verdict, verdict.exit_code) == ("INSUFFICIENT", 3)
        assert verdict.reason.startswith(f"no recorder data from rank {odd}")
        assert f"no recorder data from rank {odd}" in verdict.missing


def test_two_against_two_names_nobody():
    at = {0: (9, "all_gather"), 1: (9, "all_gather"), 2: (9, "all_reduce"), 3: (9, "all_reduce")}
    ranks = [make.rank(n, trial.WAIT) for n in range(4)]
    verdict = triage(make.evidence(*ranks), make.compared(make.group("0", at)))
    assert (verdict.verdict, verdict.triage.hang, named(verdict)) == ("HUNG", "K1", set())


def test_dumps_of_two_jobs_are_no_verdict():
    verdict = triage(make.evidence(source="dumps"), make.compared(make.group("0", {0: 4}), jobs=2))
    assert verdict.verdict == "INSUFFICIENT" and "2 jobs" in verdict.reason


def test_nothing_seen_is_no_verdict():
    assert triage(make.evidence(), None).verdict == "INSUFFICIENT"
    blind = triage(make.evidence(make.rank(0), make.rank(1)), None)
    assert blind.verdict == "INSUFFICIENT" and blind.triage.next


def test_one_look_at_a_young_wait_is_no_verdict():
    built, at = trial.late(2, 1, "main:10 sleeping", progress_s=1.0)
    young = dataclasses.replace(at.groups[0].ranks[0].pending, age_s=0.8)
    state = dataclasses.replace(at.groups[0].ranks[0], pending=young)
    at = dataclasses.replace(at, groups=(dataclasses.replace(at.groups[0], ranks={**at.groups[0].ranks, 0: state}),))
    processes = tuple(
        dataclasses.replace(one, beat=dataclasses.replace(one.beat, progress_age_s=2.0)) for one in built.processes
    )
    verdict = triage(dataclasses.replace(built, processes=processes, source="live", stall_s=0.0), at)
    assert verdict.verdict == "INSUFFICIENT" and not verdict.triage.culprits
