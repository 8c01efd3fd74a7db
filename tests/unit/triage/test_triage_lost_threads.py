"""A thread that ended with an error is said where a job stands, with nobody blamed for it."""

from __future__ import annotations

import dataclasses

import pytest
from triage_evidence import evidence, process, rank

from harness.triage.evidence import LostThread, Process
from harness.triage.judge import triage

LOST = LostThread("AsyncTrajectoryCollector", "RuntimeError: rollout batch failed", 41.0)


def losing(loser: Process, *lost: LostThread) -> Process:
    assert loser.beat is not None
    return dataclasses.replace(loser, beat=dataclasses.replace(loser.beat, lost_threads=lost))


@pytest.mark.parametrize("lost", [(), (LOST,), (LOST, dataclasses.replace(LOST, name="second", age_s=90.0))])
def test_the_first_thread_that_ended_is_the_first_advice_and_nobody_is_blamed(lost: tuple[LostThread, ...]) -> None:
    ranks = [rank(0, "get_group", world=2, gone=False, wchan="pipe_read"), rank(1, "all_reduce", world=2)]
    collector = process(900, "collector", "serve")
    without = triage(evidence(collector, *ranks))
    assert without.verdict == "INSUFFICIENT"  # else the rest shows nothing
    verdict = triage(evidence(losing(collector, *lost), *ranks))
    assert verdict.triage is not None and not verdict.triage.culprits
    assert (verdict.verdict, verdict.reason) == (without.verdict, without.reason)
    lines = [line for line in verdict.evidence if "lost its thread" in line]
    assert len(lines) == len(lost)
    if lost:
        first = max(lost, key=lambda thread: thread.age_s)
        assert first.name in verdict.triage.next[0] and first.error in lines[0] and first.name in lines[0]


def test_a_healthy_job_is_not_told_about_a_thread() -> None:
    busy = rank(0, "step", "loss", world=1, progress_s=0.1)
    verdict = triage(evidence(losing(busy, LOST), stall_s=0.0))
    assert verdict.verdict == "HEALTHY" and not any("lost its thread" in line for line in verdict.evidence)
