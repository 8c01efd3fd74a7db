"""A balanced job that nobody watched is healthy at any look, and nobody is named as slow: that takes long waits.

The figures are of gloo jobs of two ranks that were looked at ten times each (torch 2.13).
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
from triage_evidence import evidence, frames, process, rank

from harness.triage.evidence import Evidence, Frame, Gpu, Process
from harness.triage.graph import build
from harness.triage.judge import triage
from reports.model import Verdict

INSIDE = "main:10 step:42 all_reduce"
LATER = "main:10 step:43 all_reduce"
SLEEPS = "main:15 time.sleep"
COMPUTES = "main:16 compute:3"


def bare(
    number: int, first: str, last: str | None = None, *, woken: int = 0, kilobytes: float = 0.0, quiet_s: float = 0.02,
    **more: object,
) -> Process:  # fmt: skip
    """A rank of two of which nothing is known but stacks, wake-ups of its main thread and what went over TCP."""
    seen = rank(number, first, last, world=2, **more)
    looks = tuple(
        dataclasses.replace(look, main_switches=at * woken, net_bytes=int(at * kilobytes * 1000), net_quiet_s=quiet_s)
        for at, look in enumerate(seen.samples)
    )
    return dataclasses.replace(seen, samples=looks, beat=None)


def look(*processes: Process, **more: object) -> Evidence:
    return evidence(*processes, source="live", stall_s=0.0, **more)


def judged(*processes: Process, **more: object) -> Verdict:
    return triage(look(*processes, **more))


PASSES = {"woken": 18, "kilobytes": 104}  # steps of 50 ms of sleep and two all_reduce


@pytest.mark.parametrize(
    "ranks",
    [
        (bare(0, INSIDE, **PASSES), bare(1, INSIDE, **PASSES)),
        (bare(0, INSIDE, **PASSES), bare(1, SLEEPS, **PASSES)),
        (bare(0, SLEEPS, INSIDE, **PASSES), bare(1, SLEEPS, **PASSES)),
        (bare(0, SLEEPS, **PASSES), bare(1, SLEEPS, **PASSES)),
        (bare(0, INSIDE, LATER), bare(1, SLEEPS)),
        (bare(0, INSIDE), bare(1, COMPUTES, cpu_s=0.5)),
        (bare(0, COMPUTES, cpu_s=0.5), bare(1, INSIDE)),
        (bare(0, INSIDE, kilobytes=3000), bare(1, COMPUTES, cpu_s=0.5)),
    ],
)
def test_a_moment_of_a_balanced_job_is_healthy_and_names_nobody(ranks: tuple[Process, ...]) -> None:
    verdict = judged(*ranks)
    assert verdict.verdict == "HEALTHY" and not verdict.triage.culprits and not verdict.triage.hang
    assert "idle" not in verdict.reason and "slow" not in verdict.reason


def test_a_rank_that_stands_in_one_collective_did_not_pass_any() -> None:
    """Its main thread slept throughout, though data came before the first look, or comes for another thread."""
    for inside in (bare(0, INSIDE), bare(0, INSIDE, kilobytes=5), bare(0, INSIDE, woken=40)):
        verdict = judged(inside, bare(1, SLEEPS))
        assert verdict.verdict == "INSUFFICIENT", "a hang that is so young cannot be told"
    old = judged(bare(0, INSIDE, quiet_s=30.0), bare(1, SLEEPS, quiet_s=30.0))
    assert old.verdict == "HUNG" and [party.rank for party in old.triage.culprits] == [1]


def test_waits_that_poll_and_traffic_of_others_pass_nothing() -> None:
    """NCCL's waits poll, and a worker of Ray talks to Ray: neither says that a collective ended."""
    gpu = Gpu("node0", 0, "H100", 1, 2, 1.0)
    assert judged(bare(0, INSIDE, **PASSES), bare(1, SLEEPS), gpus=(gpu,)).verdict == "INSUFFICIENT"
    worker = bare(0, INSIDE, **PASSES, title="ray::Actor.step")
    assert judged(worker, bare(1, SLEEPS, quiet_s=30.0)).verdict != "HEALTHY"


def test_a_wait_that_is_long_is_for_somebody_slow() -> None:
    """By the watch, or by the heartbeat of who waits."""
    slow = bare(1, COMPUTES, cpu_s=0.5)
    watched = triage(evidence(rank(0, INSIDE, world=2), slow, stall_s=12.0))
    beats = judged(rank(0, INSIDE, world=2, progress_s=90.0), slow)
    for verdict in (watched, beats):
        assert verdict.verdict == "SLOW" and verdict.reason.startswith("rank 1 is slow") and not verdict.triage.culprits
    assert judged(rank(0, INSIDE, world=2, progress_s=20.0), slow).verdict == "HEALTHY"


def test_only_who_waits_for_work_at_both_looks_counts_as_idle() -> None:
    server = dataclasses.replace(process(300, "engine", "run_busy_loop queue.get"), beat=None)
    idle = judged(server)
    assert idle.verdict == "HEALTHY" and "1 of 1 idle" in idle.reason
    assert "idle" not in judged(bare(0, SLEEPS), bare(1, SLEEPS)).reason


@pytest.mark.parametrize("over", [True, False])
def test_a_rank_whose_program_is_over_ends_and_is_not_slow(over: bool) -> None:
    """As while its interpreter frees memory, where it has no stack any more."""
    last = rank(1, "", state="R", world=2)
    assert last.beat is not None
    ending = dataclasses.replace(last, beat=dataclasses.replace(last.beat, ended=over))
    verdict = triage(evidence(rank(0, INSIDE, world=2), ending, stall_s=12.0))
    assert verdict.verdict == "SLOW" and verdict.reason.startswith(f"rank 1 is {'ending' if over else 'slow'}, not")


@pytest.mark.parametrize(("wchan", "first"), [("inet_csk_accept", False), ("", True)])
def test_a_thread_that_works_beside_an_accept_loop_is_not_placed_in_the_loop(wchan: str, first: bool) -> None:
    server = bare(1, COMPUTES, cpu_s=0.5, wchan=wchan)
    verdict = triage(evidence(rank(0, INSIDE, world=2), server, stall_s=12.0))
    assert verdict.verdict == "SLOW" and bool(verdict.triage.place) is first


PROGRAM = """
def trains(batches):
    for step, batch in enumerate(batches):
        with profiled():
            model(batch).sum().backward()
        time.sleep(0.5)
        if step == 90:
            break

def flagged():
    while True:
        dist.broadcast(flag, 0)
        if flag.item():
            return
        time.sleep(0.5)

def last(path):
    while not path.exists():
        if path.name == "final":
            dist.barrier()
        time.sleep(0.5)
"""
TRAINS, FLAGGED, LAST = (PROGRAM[:start].count("\n") + 1 for start in
                         (found.start() for found in re.finditer(r"time\.sleep", PROGRAM)))  # fmt: skip


ROUNDS = {"woken": 18, "kilobytes": 9.0}  # 6 kB a second, as two ranks that sleep for most of each round


def asleep_at(number: int, function: str, line: int, file: Path, **moved: float) -> Process:
    """A rank that is met at a line of the program that sleeps, at both looks."""
    sleeper = bare(number, SLEEPS, wchan="hrtimer_nanosleep", **moved)
    stack = (Frame(function, str(file), line), *frames("main:40"))
    looks = (
        dataclasses.replace(look, threads=(dataclasses.replace(look.threads[0], frames=stack),), timed=True)
        for look in sleeper.samples
    )
    return dataclasses.replace(sleeper, samples=tuple(looks))


@pytest.fixture
def program(tmp_path: Path) -> Path:
    file = tmp_path / "train.py"
    file.write_text(PROGRAM)
    return file


@pytest.mark.parametrize(("function", "line"), [("trains", TRAINS), ("flagged", FLAGGED)])
def test_ranks_that_sleep_in_a_round_that_trains_are_healthy_while_data_goes_between_them(
    program: Path, function: str, line: int
) -> None:
    verdict = judged(*(asleep_at(number, function, line, program, **ROUNDS) for number in (0, 1)))
    assert verdict.verdict == "HEALTHY"
    assert progress(asleep_at(0, function, line, program, **ROUNDS))
    # The controls: nothing goes between them, their main threads do not wake up, or data came long ago.
    for moved in ({"woken": 18}, {"kilobytes": 9.0}, {**ROUNDS, "quiet_s": 30.0}):
        assert not progress(asleep_at(0, function, line, program, **moved))


def progress(process: Process) -> str:
    graph = build(look(process), None)
    return graph.subjects[process.key].progress


def test_a_poll_with_a_collective_for_its_last_round_stays_a_poll(program: Path) -> None:
    verdict = judged(*(asleep_at(number, "last", LAST, program, **ROUNDS) for number in (0, 1)))
    assert verdict.verdict == "INSUFFICIENT" and not verdict.triage.culprits


def counted(number: int, stack: str, *, progress_s: float, stale_s: float = 0.5) -> Process:
    """A rank whose probe counts, which rests at this place at both looks."""
    return rank(number, stack, world=2, progress_s=progress_s, stale_s=stale_s, wchan="hrtimer_nanosleep")


def test_what_a_heartbeat_counted_within_the_looks_is_progress() -> None:
    """A straggler that sleeps in each step, met in its sleep alone: `did not move` was said of it."""
    ranks = [counted(number, SLEEPS, progress_s=0.4) for number in (0, 1)]
    assert all(progress(each) for each in ranks)
    assert judged(*ranks).verdict == "HEALTHY"
    # The controls: it counted before the looks, its heartbeat is silent, or a watch saw that the job stands.
    assert not progress(counted(0, SLEEPS, progress_s=9.0))
    assert not progress(counted(0, SLEEPS, progress_s=0.4, stale_s=30.0))
    stalled = build(evidence(ranks[0], stall_s=12.0), None)
    assert not stalled.subjects[ranks[0].key].progress
