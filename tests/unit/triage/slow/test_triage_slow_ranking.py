"""Who is slow, by flight recorder dumps: planted stragglers are named with their measure, balanced jobs name nobody.

Controls come with each fault: the same job without it, or with a cause that makes nobody slow.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace

import pytest
from slow_jobs import SlowJob, even, later
from triage_evidence import evidence, rank

from harness.triage.evidence import Evidence
from harness.triage.flight.compare import compare
from harness.triage.flight.flight import Flight
from harness.triage.judge import triage
from reports.model import Verdict

DUMPS = Evidence("", "dumps", "", 0.0)


def judged(flights: Mapping[str, Flight]) -> Verdict:
    return triage(DUMPS, compare(flights))


def on_hosts(job: SlowJob, *hosts: str) -> Verdict:
    """The verdict on the dumps of a live job, with rank N on host N of `hosts`."""
    seen = [replace(rank(number, world=job.ranks, progress_s=0.5), host=host) for number, host in enumerate(hosts)]
    flights = {seen[number].key: flight for number, flight in enumerate(job.flights().values())}
    return triage(evidence(*seen, source="live", stall_s=0.0), compare(flights))


def slow_ranks(verdict: Verdict) -> set[int]:
    assert verdict.triage is not None
    return {number for row in verdict.triage.lateness if row.slow for number in row.ranks}


@pytest.mark.parametrize("backend", ["gloo", "nccl", "hccl"])
def test_a_rank_that_is_late_in_every_step_is_slow(backend: str) -> None:
    verdict = judged(SlowJob(4, 30, later([2], 0.3), backend=backend).flights())
    assert (verdict.verdict, slow_ranks(verdict)) == ("SLOW", {2})
    assert verdict.triage.hang == "K7" and not verdict.triage.culprits
    first = verdict.triage.lateness[0]
    assert (first.ranks, first.last, first.of, first.op, first.group) == ((2,), 30, 30, "all_reduce", "default_pg")
    assert 0.2 < first.median_s < 0.4 and 0.15 < first.share < 0.3
    assert "rank 2 is slow: it came last in 30 of 30 all_reduce" in verdict.reason


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
@pytest.mark.parametrize("ranks", [2, 5])
def test_in_a_balanced_job_nobody_is_slow_and_all_are_ranked(backend: str, ranks: int) -> None:
    verdict = judged(SlowJob(ranks, 30, backend=backend).flights())
    assert (verdict.verdict, slow_ranks(verdict)) == ("INSUFFICIENT", set())  # dumps do not say whether they move
    assert len(verdict.triage.lateness) == ranks and sum(row.last for row in verdict.triage.lateness) > 0


@pytest.mark.slow
def test_no_balanced_job_of_two_hundred_names_anybody() -> None:
    jobs = (SlowJob(2 + seed % 7, 20, collectives=1, backend="nccl", seed=seed) for seed in range(200))
    assert not [job for job in jobs if slow_ranks(judged(job.flights()))]


def test_one_long_sample_is_no_slow_rank() -> None:
    verdict = judged(SlowJob(4, 40, later([2], 30.0, steps=[17])).flights())
    assert (verdict.verdict, slow_ranks(verdict)) == ("INSUFFICIENT", set())  # dumps do not say whether they move


def test_a_slow_start_is_no_slow_rank() -> None:
    """It was late in a third of the steps, in a row, and is not late any more."""
    verdict = judged(SlowJob(8, 60, later([2], 0.5, steps=range(20))).flights())
    assert slow_ranks(verdict) == set()


def test_a_few_steps_prove_nothing() -> None:
    assert slow_ranks(judged(SlowJob(2, 8, later([1], 0.5)).flights())) == set()
    assert slow_ranks(judged(SlowJob(2, 30, later([1], 0.5)).flights())) == {1}


def test_who_is_last_by_next_to_nothing_keeps_nobody_waiting() -> None:
    """It is last every time, by 20 ms of a second: others vary as much."""
    steady = SlowJob(4, 60, lambda number, step, dice: 1.0 + (0.02 if number == 3 else 0.0))
    assert slow_ranks(judged(steady.flights())) == set()


def test_two_ranks_that_take_turns_are_both_not_named() -> None:
    def work(number: int, step: int, dice: random.Random) -> float:
        return even(number, step, dice) + (0.5 if number == step % 2 else 0.0)

    assert slow_ranks(judged(SlowJob(4, 60, work).flights())) == set()


def test_a_slow_host_is_named_with_its_ranks() -> None:
    hosts = ("a", "a", "b", "b")
    slow = on_hosts(SlowJob(4, 30, later([2, 3], 0.4), clocks_s={2: 5.0, 3: 5.0}), *hosts)
    assert (slow.verdict, slow_ranks(slow)) == ("SLOW", {2, 3})
    assert slow.reason.startswith("host b is slow: its 2 ranks came last in 30 of 30")
    row = slow.triage.lateness[0]
    assert (row.ranks, row.host, row.last) == ((2, 3), "b", 30)
    assert slow_ranks(on_hosts(SlowJob(4, 30, clocks_s={2: 5.0, 3: 5.0}), *hosts)) == set()


# --- clocks


@pytest.mark.slow
@pytest.mark.parametrize("ahead_s", [-30.0, -0.4, 0.4, 30.0])
def test_clocks_that_differ_name_nobody_and_hide_nobody(ahead_s: float) -> None:
    clocks = {1: ahead_s, 2: 2 * ahead_s}
    assert slow_ranks(judged(SlowJob(3, 40, clocks_s=clocks).flights())) == set()
    for straggler in range(3):
        job = SlowJob(3, 40, later([straggler], 0.4), clocks_s=clocks)
        verdict = judged(job.flights())
        assert slow_ranks(verdict) == {straggler}
        assert 0 < verdict.triage.lateness[0].bound_s < 0.05


def test_of_unknown_hosts_one_collective_a_step_cannot_tell_slow_from_a_clock() -> None:
    """The dumps of a rank that is late by 0.4 s, and of one whose clock is ahead by 0.4 s, are the same."""
    late = SlowJob(3, 40, later([1], 0.4), collectives=1)
    assert slow_ranks(judged(late.flights())) == set()
    assert slow_ranks(judged(SlowJob(3, 40, collectives=1, clocks_s={1: 0.4}).flights())) == set()
    assert slow_ranks(on_hosts(late, "a", "a", "a")) == {1}, "on one host there is one clock"


# --- what is not tested says so


@pytest.mark.parametrize(
    ("flights", "why"),
    [
        (SlowJob(4, 40, later([1], 0.4), backend="nccl", timed=False).flights(), "TORCH_NCCL_ENABLE_TIMING"),
        (SlowJob(4, 40, later([1], 0.4), waits=False).flights(), "clocks"),
        (SlowJob(4, 1, collectives=1).flights(), "fewer than two"),
        (SlowJob(4, 40, later([1], 0.4), backend="ucc").flights(), "backend"),
    ],
)
def test_what_recorders_do_not_say_is_not_tested(flights: dict[str, Flight], why: str) -> None:
    verdict = judged(flights)
    assert slow_ranks(verdict) == set()
    assert [line for line in verdict.evidence if "not tested" in line and why in line]


def test_without_the_dump_of_a_member_nobody_is_named() -> None:
    verdict = judged(SlowJob(4, 40, later([1], 0.4)).flights(without=[3]))
    assert slow_ranks(verdict) == set() and verdict.verdict != "SLOW"


# --- several groups


@pytest.mark.slow
def test_a_rank_that_waits_for_a_slow_one_is_not_slow_itself() -> None:
    """Rank 1 waits for rank 0 in their tp group, and so comes late to its dp group."""
    groups = {"tp 0": (0, 1), "tp 1": (2, 3), "dp 0": (0, 2), "dp 1": (1, 3)}
    for straggler in range(4):
        job = SlowJob(4, 40, later([straggler], 0.4), groups=groups, collectives=2)
        assert slow_ranks(on_hosts(job, *"aaaa")) == {straggler}
    assert slow_ranks(on_hosts(SlowJob(4, 40, groups=groups, collectives=2), *"aaaa")) == set()


def test_a_hang_is_not_explained_by_who_was_slow_before() -> None:
    flights = SlowJob(4, 40, later([1], 0.4)).flights()
    pending = {name: _undone(flight) for name, flight in flights.items() if flight.rank != 3}
    verdict = judged({**flights, **pending})
    assert verdict.verdict != "SLOW" and not verdict.triage.lateness


def _undone(flight: Flight) -> Flight:
    return replace(flight, done=flight.done[:-1] + b"\0")


def test_at_a_stall_who_came_late_decides_nothing() -> None:
    seen = [rank(number, world=3, progress_s=0.5) for number in range(3)]
    flights = dict(zip((each.key for each in seen), SlowJob(3, 30, later([1], 0.4)).flights().values(), strict=True))
    at_a_stall, looked_at = (triage(evidence(*seen, stall_s=stall_s), compare(flights)) for stall_s in (30.0, 0.0))
    assert (at_a_stall.verdict, looked_at.verdict) == ("HEALTHY", "SLOW")
    assert slow_ranks(at_a_stall) == slow_ranks(looked_at) == {1}


@pytest.mark.parametrize("source", ["live", "watch"])
def test_what_is_advised_about_a_straggler_works_in_its_job(source: str) -> None:
    """A job that is watched cannot be told to watch, and one that lives can be looked at again."""
    job = SlowJob(4, 30, later([2], 0.3))
    seen = [replace(rank(number, world=4, progress_s=0.5), **_unwatched(source)) for number in range(4)]
    flights = {seen[number].key: flight for number, flight in enumerate(job.flights().values())}
    verdict = triage(evidence(*seen, source=source, stall_s=0.0), compare(flights))
    assert slow_ranks(verdict) == {2} and verdict.triage is not None
    steps = verdict.triage.next
    assert any(step.startswith("harness triage 100 101 102 103 ") for step in steps), steps
    assert any("harness watch" in step for step in steps) is (source == "live")
    assert not any("harness" in step for step in judged(job.flights()).triage.next if "harness watch" not in step)


def _unwatched(source: str) -> dict[str, None]:
    return {} if source == "watch" else {"beat": None}
