"""Memory that grows: the trend of one series, and the check on recordings."""

from __future__ import annotations

import copy
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import recordings
from hypothesis import given, settings
from hypothesis import strategies as st
from recordings import check, scenario

from harness.parity import judge
from harness.parity.subjects.engines.checks_memory import NAME
from harness.parity.subjects.engines.observed_memory import ALPHA, FEWEST, LEAST, MIB, Held, by_phase, growth, recorded
from harness.recordings.store import Recording
from probes.format import encode_lines, seal, write_manifest

STEPS = 20
SEEDS = st.integers(0, 2**32 - 1)


def grows(mib: np.ndarray, series: int = 1) -> bool:
    values = 2000 * MIB + mib * MIB
    found = growth(Held("actor", 0, "rss", np.arange(len(mib)), values, values), series)
    assert found is not None
    return found.grows


# --- the trend of one series ----------------------------------------------------------------------------


@given(SEEDS, st.integers(STEPS, 200), st.floats(3, 50), st.sampled_from([1, 10, 100]))
def test_a_few_mib_a_step_are_found_within_20_steps(seed: int, steps: int, leak: float, series: int) -> None:
    noise = np.random.default_rng(seed).normal(0, leak / 20, steps)
    assert grows(leak * np.arange(steps) + noise, series)


@given(SEEDS, st.integers(FEWEST, 200), st.floats(0, 500))
def test_noise_about_a_level_is_no_growth(seed: int, steps: int, size: float) -> None:
    assert not grows(np.random.default_rng(seed).normal(0, size, steps))


@given(SEEDS, st.integers(STEPS, 200), st.lists(st.floats(0, 1), max_size=3), st.floats(0, 5000))
def test_jumps_are_no_growth(seed: int, steps: int, places: list[float], size: float) -> None:
    rng, at = np.random.default_rng(seed), np.arange(steps)
    assert not grows(rng.normal(0, 1, steps) + sum((size * (at > place * steps) for place in places), np.zeros(steps)))


@given(SEEDS, st.integers(STEPS, 200), st.floats(0.05, 0.25), st.floats(0, 5000))
def test_warm_up_is_no_growth(seed: int, steps: int, share: float, size: float) -> None:
    """Memory that fills up within the first steps: a time constant of at most a quarter of them."""
    rng, at = np.random.default_rng(seed), np.arange(steps)
    assert not grows(size * (1 - np.exp(-at / (share * steps))) + rng.normal(0, 1, steps))


@given(SEEDS, st.integers(STEPS, 200), st.floats(0.05, 0.5), st.floats(0, 500))
def test_what_is_given_back_is_no_growth(seed: int, steps: int, share: float, size: float) -> None:
    """A garbage collector that runs at least twice within the steps."""
    rng, at, period = np.random.default_rng(seed), np.arange(steps), max(2, int(share * steps))
    assert not grows(size * ((at + rng.integers(period)) % period) / period + rng.normal(0, 1, steps))


@given(SEEDS, st.integers(STEPS, 200), st.floats(1, 500))
def test_the_largest_batch_so_far_is_no_growth(seed: int, steps: int, size: float) -> None:
    """An allocator that gives nothing back holds what the largest batch took."""
    assert not grows(np.maximum.accumulate(np.random.default_rng(seed).normal(0, size, steps)))


@pytest.mark.by_day(2)
@pytest.mark.slow
@pytest.mark.parametrize("steps", [FEWEST, 20, 100])
@pytest.mark.parametrize("series", [1, 20])
def test_the_error_rate_is_for_all_series_together(steps: int, series: int) -> None:
    """Random walks: the noise that looks most like a leak."""
    rng, runs = np.random.default_rng(7), 2000 // series
    alarms = sum(any(grows(rng.normal(0, 30, steps).cumsum(), series) for _ in range(series)) for _ in range(runs))
    assert alarms <= ALPHA * runs


def test_growth_that_does_not_matter_is_none() -> None:
    """Half a MiB a step, in every step and without noise, takes 10,000 steps to 5 GiB."""
    assert not grows(0.5 * np.arange(STEPS)) and grows(1.5 * np.arange(STEPS))


def test_too_few_steps_say_nothing() -> None:
    few = np.arange(FEWEST - 1.0)
    assert growth(Held("actor", 0, "rss", few.astype(int), few * MIB, few * MIB), 1) is None
    more = np.arange(float(FEWEST))
    assert growth(Held("actor", 0, "rss", more.astype(int), more * MIB, more * MIB), 1) is not None


@given(SEEDS, st.floats(0.1, 20))
@settings(max_examples=50)
def test_the_smallest_growth_that_it_names_would_have_been_found(seed: int, size: float) -> None:
    noise = np.random.default_rng(seed).normal(0, size, STEPS) * MIB
    steps = np.arange(STEPS)
    found = growth(Held("actor", 0, "rss", steps, noise, noise), 5)
    assert found is not None and found.smallest >= LEAST
    leaking = noise + steps * (found.smallest - found.rate) * 1.01
    again = growth(Held("actor", 0, "rss", steps, leaking, leaking), 5)
    assert again is not None and again.rate >= again.smallest


# --- the check on recordings ----------------------------------------------------------------------------


def told(run: recordings.Recording, leaks: dict[str, float], rank: int = 0) -> recordings.Recording:
    """Memory in the spans of its trainer, and in calls of its engine; `leaks`: role or title -> MiB a step."""
    rng = np.random.default_rng(5)

    def rss(who: str, step: int) -> int:
        return int((1500 + leaks.get(who, 0.0) * step + rng.normal(0, 0.3)) * MIB)

    trainer, rollout = run.logs["trainer"], run.logs["rollout"]
    for kind, event in trainer.events:
        if kind == "span" and event.get("step", -1) >= 0:
            event["rss"] = rss("trainer", event["step"])
    for step in range(run.manifest["scenario"]["steps"]):
        engine = {"pid": 77, "title": "VLLM::EngineCore", "rss": rss("VLLM::EngineCore", step), "shared": 5}
        rollout.event("call", name="generate", step=step, ok=True, message="", seconds=0.1, rss=rss("rollout", step),
                      dev_shm=rss("dev_shm", step), processes=[engine])  # fmt: skip
    return run


def judged(folder: Path, leaks: dict[str, float], steps: int = STEPS, only: str = "") -> Any:
    plan = scenario(steps=steps, prompts=2, group=2)
    pair = [recordings.make(side, plan, native=False) for side in ("baseline", "candidate")]
    for run, own in zip(pair, ({}, leaks), strict=True):
        if only in ("", run.manifest["side"]):
            told(run, own)
    return recordings.put(folder, *pair, native=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("who", "named"),
    [
        ("trainer", "resident memory of trainer, rank 0"),
        ("rollout", "resident memory of rollout, rank 0"),
        ("VLLM::EngineCore", "resident memory of rollout, VLLM::EngineCore, rank 0"),
        ("dev_shm", "/dev/shm of its host of rollout, rank 0"),
    ],
)
def test_planted_growth_is_found_and_its_process_named(tmp_path: Path, who: str, named: str) -> None:
    verdict = judged(tmp_path, {who: 4.0})
    assert check(verdict, NAME).state == "confirmed"
    [finding] = [one for one in verdict.findings if one.name == "memory growth"]
    assert finding.where == "candidate" and finding.summary.startswith(f"{named} grows by ")
    assert 3.5 < finding.details["mib_per_step"] < 4.5
    assert verdict.verdict == "EQUIVALENT"  # a leak changes no number


@pytest.mark.slow
def test_without_growth_it_is_ruled_out_and_says_what_would_have_been_found(tmp_path: Path) -> None:
    verdict = judged(tmp_path, {})
    found = check(verdict, NAME)
    assert found.state == "ruled out" and "none of 4" in found.evidence
    assert not [one for one in verdict.findings if one.name == "memory growth"]
    [run, _] = verdict.parity.runs
    assert len(run.series["memory of rollout, VLLM::EngineCore, MiB"]) == STEPS
    assert 1499 < run.measured["largest memory of trainer, MiB"] < 1501


@pytest.mark.slow
def test_too_few_steps_or_no_memory_is_not_tested(tmp_path: Path) -> None:
    few = judged(tmp_path / "few", {"trainer": 50.0}, steps=6)  # 16 are needed: the check does not apply
    assert few.parity is not None and NAME not in {found.name for found in few.parity.checks}
    one = check(judged(tmp_path / "one", {}, only="baseline"), NAME)
    assert one.state == "not tested" and one.evidence.startswith(
        "candidate: no memory was recorded; baseline: none of 4 series"
    )
    none = judged(tmp_path / "none", {}, only="nobody")
    assert none.parity is not None and NAME not in {one.name for one in none.parity.checks}


def test_odd_numbers_of_another_writer_are_missing_evidence(tmp_path: Path) -> None:
    plan = scenario(steps=STEPS, prompts=2, group=2)
    run = told(recordings.make("baseline", plan, native=False), {})
    for kind, event in run.logs["trainer"].events:
        if kind == "span" and "rss" in event:
            event |= {"rss": "nan" if event["step"] % 2 else None, "cuda_allocated": "many", "dev_shm": -1}
    for kind, event in run.logs["rollout"].events:
        if kind == "call":
            event["processes"] = [3, None, {"rss": [1]}] if event["step"] else 5
    series = recorded(Recording(run.write(tmp_path / "run")))
    assert {(one.role, one.what) for one in series} == {("rollout", "rss"), ("rollout", "dev_shm")}


def test_what_a_phase_holds_and_gives_back_is_told_for_each_role(tmp_path: Path) -> None:
    """The engine sleeps after it has generated, which gives back what that took; steps before the first count not."""
    run = recordings.make("baseline", scenario(steps=2, prompts=2, group=2), native=False)
    trainer, rollout = run.logs["trainer"], run.logs["rollout"]
    for step in (-1, 0, 1):
        more = 9000 * MIB * (step < 0)
        trainer.event("span", name="flush", step=step, start_ns=0, dur_ns=1, ok=True, rss=700 * MIB + more,
                      rss_before=690 * MIB, cuda_reserved=40 * MIB, cuda_reserved_before=100 * MIB)  # fmt: skip
        for name, rss in (("generate", 900), ("sleep", 500)):
            engine = {"pid": 77, "title": "VLLM::EngineCore", "rss": 3 * rss * MIB, "shared": 5}
            rollout.event("call", name=name, step=step, ok=True, message="", seconds=0.1, rss=rss * MIB + more,
                          dev_shm=25 * MIB, cuda_allocated=-1, processes=[engine])  # fmt: skip
        rollout.event("engine_stats", step=step, kv_usage=0.1 + 0.1 * step)
    told = {(one.role, one.phase): one for one in by_phase(Recording(run.write(tmp_path / "run")))}
    flush = told["trainer", "flush"]
    assert (flush.rss, flush.rss_change, flush.cuda_reserved_change) == (700 * MIB, 10 * MIB, -60 * MIB)
    generate, sleep = told["rollout", "generate"], told["rollout", "sleep"]
    assert (generate.rss, generate.dev_shm, generate.kv_usage) == (900 * MIB, 25 * MIB, 0.2)
    assert (sleep.rss, sleep.rss_change, sleep.kv_usage, sleep.cuda_allocated) == (500 * MIB, -400 * MIB, None, None)
    assert told["rollout, VLLM::EngineCore", "sleep"].rss_change == -1200 * MIB


@pytest.mark.slow
def test_a_thousand_processes_are_read_in_seconds(tmp_path: Path) -> None:
    """And the one that leaks is named, beside 999 that do not."""
    write_manifest(tmp_path, {})
    (tmp_path / "events").mkdir(exist_ok=True)
    rng = np.random.default_rng(3)
    for rank in range(1000):
        events: list[tuple[int, str, dict[str, Any]]] = [(0, "open", {"role": "actor", "rank": rank, "pid": rank + 1})]
        for step in range(STEPS):
            rss = int((900 + rng.normal(0, 0.5) + 4 * step * (rank == 617)) * MIB)
            events.append((0, "span", {"name": "train", "step": step, "rss": rss}))
        (tmp_path / "events" / f"actor-{rank}-{rank + 1}.jsonl").write_bytes(encode_lines(events))
    began = time.process_time()
    series = recorded(Recording(tmp_path))
    found = [one.who for one in series if (trend := growth(one, len(series))) is not None and trend.grows]
    assert found == ["actor, rank 617"]
    assert time.process_time() - began < 10  # 0.35 s measured


def test_many_spans_of_one_process_are_read_by_step(tmp_path: Path) -> None:
    """More than a thousand lines are parsed at once; the least and the largest of a step's spans stay."""
    write_manifest(tmp_path, {})
    (tmp_path / "events").mkdir(exist_ok=True)
    events: list[tuple[int, str, dict[str, Any]]] = [(0, "open", {"role": "actor", "rank": 3, "pid": 1})]
    fields: dict[str, Any] = {"name": "forward", "start_ns": 0, "dur_ns": 1, "ok": True}
    for at in range(1500):
        own = {"step": at // 10, "rss": 100 + at % 10} if at % 7 else {}
        events.append((0, "span", copy.copy(fields) | own))
    (tmp_path / "events" / "actor-3-1.jsonl").write_bytes(encode_lines(events))
    recording = Recording(tmp_path)
    [one] = recorded(recording)
    assert one.steps.tolist() == list(range(150)) and one.who == "actor, rank 3"
    assert (one.low[1], one.high[1]) == (100, 109)
    recording.restrict(range(5, 9))
    [one] = recorded(recording)
    assert one.steps.tolist() == [5, 6, 7, 8]


PROGRAM = """
import sys
from probes import install

kept, mib, leak = [], 2**20, int(sys.argv[2])
with install.start(sys.argv[1], role="reward", rank=1, world_size=2) as recorder:
    for step in range(20):
        with recorder.span("reward_forward", step=step):
            scratch = b"x" * (32 * mib)  # given back after each step
            kept.append(b"x" * (leak * mib))
            del scratch
"""


@pytest.mark.by_day(1)
@pytest.mark.slow
@pytest.mark.parametrize("leak", [4, 0])
def test_a_real_process_that_leaks_is_found_within_20_steps(tmp_path: Path, leak: int) -> None:
    plan = scenario(steps=STEPS, prompts=2, group=2)
    runs = [recordings.make(side, plan, native=False).write(tmp_path / side) for side in ("baseline", "candidate")]
    for run, mib in zip(runs, (0, leak), strict=True):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, run, str(mib)], capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        seal(run)
    verdict = judge(*runs, native=False)
    findings = [one for one in verdict.findings if one.name == "memory growth"]
    assert check(verdict, NAME).state == ("confirmed" if leak else "ruled out")
    assert [(one.where, one.details["process"]) for one in findings] == [("candidate", "reward, rank 1")] * bool(leak)
    assert all(3.5 < one.details["mib_per_step"] < 4.5 for one in findings)
