"""Stacks alone: two looks at a job of short collectives, which nobody watched and which records nothing."""

from __future__ import annotations

import dataclasses

import pytest
from triage_evidence import evidence, rank

from harness.triage.evidence import Process
from harness.triage.judge import triage

WAIT = "main:10 step:42 all_reduce"
STANDS = "main:15 time.sleep"


def bare(number: int, stack: str, quiet_s: float | None, **fields: object) -> Process:
    """A rank of which nothing but stacks and connections is known."""
    seen = rank(number, stack)
    looks = tuple(dataclasses.replace(look, net_quiet_s=quiet_s) for look in seen.samples)
    return dataclasses.replace(seen, samples=looks, beat=None, **fields)  # type: ignore[arg-type]


def unwatched(*processes: Process) -> tuple[str, str]:
    verdict = triage(evidence(*processes, source="live", stall_s=0.0))
    return verdict.verdict, verdict.reason


@pytest.mark.parametrize("quiet_s", [0.0, 3.0, 9.9])
def test_ranks_that_had_data_a_moment_ago_are_not_hung(quiet_s: float) -> None:
    verdict, reason = unwatched(bare(0, WAIT, quiet_s), bare(1, STANDS, quiet_s))
    assert verdict == "INSUFFICIENT" and f"{quiet_s:.1f} s ago" in reason


@pytest.mark.parametrize("quiet_s", [10.0, 25.0, None])
def test_a_rank_outside_is_named_once_nothing_flows(quiet_s: float | None) -> None:
    verdict, reason = unwatched(bare(0, WAIT, quiet_s), bare(1, STANDS, quiet_s))
    assert verdict == "HUNG" and reason.startswith("rank 1 is outside any collective")


def test_data_before_a_longer_look_still_makes_the_hang_young() -> None:
    waiter = bare(0, WAIT, 12.0)
    first = dataclasses.replace(waiter.samples[0], net_quiet_s=3.0)
    waiter = dataclasses.replace(waiter, samples=(first, *waiter.samples[1:]))
    assert unwatched(waiter, bare(1, STANDS, 12.0))[0] == "INSUFFICIENT"


def test_traffic_of_a_ray_worker_is_with_ray() -> None:
    verdict, _ = unwatched(bare(0, WAIT, 0.1, title="ray::Actor.step"), bare(1, STANDS, 20.0))
    assert verdict == "HUNG"


def test_a_heartbeat_or_a_watch_says_more_than_traffic() -> None:
    beating = (rank(0, WAIT), rank(1, STANDS))
    beating = tuple(
        dataclasses.replace(one, samples=tuple(dataclasses.replace(look, net_quiet_s=0.1) for look in one.samples))
        for one in beating
    )
    assert unwatched(*beating)[0] == "HUNG"
    watched = triage(evidence(bare(0, WAIT, 0.1), bare(1, STANDS, 0.1), stall_s=30.0))
    assert watched.verdict == "HUNG"


def test_a_rank_that_died_is_named_whatever_flows() -> None:
    dead = dataclasses.replace(rank(1, gone=True), beat=None, exit_code=-9)
    verdict, reason = unwatched(bare(0, WAIT, 0.1), dead)
    assert verdict == "HUNG" and "rank 1" in reason


@pytest.mark.parametrize(("parent", "is_named"), [(7, True), (8, False)])
def test_a_sibling_that_stands_elsewhere_is_told_although_nobody_has_a_rank(parent: int, is_named: bool) -> None:
    children = [
        dataclasses.replace(bare(number, stack, 60.0, ppid=ppid), rank=None, world_size=None)
        for number, stack, ppid in ((0, WAIT, 7), (1, STANDS, parent), (2, WAIT, 7))
    ]
    verdict = triage(evidence(*children, source="live", stall_s=0.0))
    assert verdict.verdict == "INSUFFICIENT" and not verdict.triage.culprits
    assert ("pid 101 at " in verdict.reason) is is_named
    assert any("dump --pid 101 " in step for step in verdict.triage.next) is is_named
