"""Several engines of one run: one that differs is named, and a sample of another engine than the rule's is told."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from recordings import FrameRecord, Log, Recording, check, pair, put, scenario

from harness.parity.subjects.engines.observed import drawn_by_suspect, numbered, suspect
from harness.parity.verdict import judged_pair
from probes import limits
from scenarios.fleet import engine_of
from scenarios.settings import Engine, Scenario

TWO: Scenario = dataclasses.replace(scenario(), engine=Engine(engines=2))


def split(run: Recording) -> Recording:
    """The same run, drawn by two engines."""
    for name in {"rollout", "native"} & set(run.logs):
        _split(run, name)
    return run


def _split(run: Recording, name: str) -> None:
    first = run.logs[name]
    second = run.logs["second" if name == "rollout" else f"second {name}"] = Log(
        "rollout", first.pid + 7000, 1, events=copy.deepcopy(first.events)
    )
    second.events[0][1].update(pid=second.pid, rank=1)
    for frame in [one for one in first.frames if one.kind in ("rollout", "floor", "native", "repeat")]:
        samples = np.asarray(frame.arrays["sample"]).tolist()
        by = [engine_of(sample, TWO.rollout.samples_per_prompt, 2) for sample in samples]
        other = FrameRecord(frame.kind, frame.step, dict(frame.fields), dict(frame.arrays))
        for part, number in ((frame, 0), (other, 1)):
            part.take([row for row, engine in enumerate(by) if engine == number])
        second.frames.append(other)


def both() -> tuple[Recording, Recording]:
    baseline, candidate = pair(plan=TWO, native=False)
    return split(baseline), split(candidate)


@pytest.mark.slow
def test_two_sound_engines_are_equivalent(tmp_path: Path) -> None:
    verdict = put(tmp_path, *both())
    assert verdict.verdict == "EQUIVALENT", verdict.reason
    assert check(verdict, "engines").state == "ruled out"


@pytest.mark.slow
@pytest.mark.parametrize("engine", [0, 1])
def test_the_engine_that_differs_is_named(tmp_path: Path, engine: int) -> None:
    baseline, candidate = both()
    for frame in candidate.logs[("rollout", "second")[engine]].frames:
        if frame.kind == "rollout":
            frame.arrays["logprob"].values += np.float32(0.01)  # type: ignore[union-attr]
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == "DIVERGENT"
    named = [one for one in verdict.findings if one.name == "one engine of several"]
    assert [one.effect for one in named] == [f"only samples of engine {engine} of 2 differ"]
    e = judged_pair(tmp_path / "baseline", tmp_path / "candidate", native=False).evidence
    assert e is not None and suspect(e) == engine
    of_engine = drawn_by_suspect(e)
    assert of_engine and all(engine_of(sample, TWO.rollout.samples_per_prompt, 2) == engine for _, sample in of_engine)


@pytest.mark.slow
def test_engines_that_differ_alike_are_not_told_apart(tmp_path: Path) -> None:
    baseline, candidate = both()
    for frame in candidate.frames("rollout"):
        frame.arrays["logprob"].values += np.float32(0.01)  # type: ignore[union-attr]
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == "DIVERGENT"
    assert not any(one.name == "one engine of several" for one in verdict.findings)


@pytest.mark.slow
@pytest.mark.parametrize("alike", [True, False])
def test_one_engine_that_draws_for_all_is_told(tmp_path: Path, alike: bool) -> None:
    """Two were asked for. Where one has no samples at all, it is not in the recording either."""
    runs = pair(plan=TWO, native=False)
    baseline, candidate = runs if alike else (split(runs[0]), runs[1])
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == "DIVERGENT", verdict.reason
    told = check(verdict, "engines").evidence
    assert "candidate: 48" in told and ("baseline: 48" in told) == alike


@pytest.mark.slow
@pytest.mark.parametrize("part", ["engine", "rollout"])
def test_samples_that_were_dealt_by_an_unknown_rule_are_not_tested(tmp_path: Path, part: str) -> None:
    baseline, candidate = both()
    del candidate.manifest["scenario"][part]
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict != "EQUIVALENT"
    assert "the candidate's scenario does not say" in check(verdict, "engines").evidence


@pytest.mark.slow
def test_a_sample_of_another_engine_than_the_rule_says_is_told(tmp_path: Path) -> None:
    baseline, candidate = both()
    frames = [
        next(one for one in candidate.logs[name].frames if one.kind == "rollout") for name in ("second", "rollout")
    ]
    moved = FrameRecord(frames[0].kind, frames[0].step, dict(frames[0].fields), dict(frames[0].arrays))
    moved.take([0])
    frames[0].take(list(range(1, len(frames[0].arrays["sample"]))))
    candidate.logs["rollout"].frames.append(moved)
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict != "EQUIVALENT"
    assert "1 sample" in check(verdict, "engines").evidence


def behind_router(run: Recording) -> Recording:
    """The same run behind a router, which gave every third sample to engine 1."""
    run = split(run)
    run.manifest["scenario"]["engine"]["router"] = "round_robin"
    logs = run.logs["rollout"], run.logs["second"]
    for frame in list(run.frames("rollout")):
        for sample in np.asarray(frame.arrays["sample"]).tolist():
            logs[sample % 3 // 2].event("answered", sample=sample, offset=0)
    return run


@pytest.mark.slow
def test_samples_of_a_router_need_no_rule(tmp_path: Path) -> None:
    baseline, candidate = pair(plan=TWO, native=False)
    verdict = put(tmp_path, split(baseline), behind_router(candidate))
    assert verdict.verdict == "EQUIVALENT", verdict.reason
    told = check(verdict, "engines")
    assert told.state == "ruled out"
    assert "engine 1: 0 of 32" in told.evidence
    [setting] = [one.summary for one in verdict.findings if one.name == "CONFIG(router)"]
    assert setting == "router was asked as empty of the baseline and round_robin of the candidate"


@pytest.mark.slow
def test_the_engine_that_differs_is_named_behind_a_router(tmp_path: Path) -> None:
    baseline, candidate = pair(plan=TWO, native=False)
    split(baseline), behind_router(candidate)
    for frame in candidate.frames("rollout"):
        rows = frame.arrays["logprob"].rows()  # type: ignore[union-attr]
        for row, sample in zip(rows, np.asarray(frame.arrays["sample"]).tolist(), strict=True):
            row += np.float32(0.01 * (sample % 3 // 2))
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == "DIVERGENT"
    named = [one for one in verdict.findings if one.name == "one engine of several"]
    assert [(one.effect, one.where) for one in named] == [("only samples of engine 1 of 2 differ", "candidate")]


@pytest.mark.slow
@pytest.mark.parametrize("engine", [0, 1])
def test_a_request_that_is_answered_twice_is_told(tmp_path: Path, engine: int) -> None:
    """Sample 6 is engine 0's."""
    baseline, candidate = pair(plan=TWO, native=False)
    split(baseline), behind_router(candidate)
    candidate.logs[("rollout", "second")[engine]].event("answered", sample=6, offset=0)
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == "DIVERGENT", verdict.reason
    told = "candidate: 1 request answered more than once behind the router, the first of them sample 6, by engine 0"
    assert told + (" and engine 1;" if engine else ";") in check(verdict, "engines").evidence


@pytest.mark.slow
def test_the_rest_of_a_sample_is_another_request(tmp_path: Path) -> None:
    baseline, candidate = pair(plan=TWO, native=False)
    split(baseline), behind_router(candidate)
    candidate.logs["second"].event("answered", sample=6, offset=3)
    assert put(tmp_path, baseline, candidate).verdict == "EQUIVALENT"


@pytest.mark.slow
def test_a_sample_that_no_engine_says_it_drew_is_not_tested(tmp_path: Path) -> None:
    baseline, candidate = pair(plan=TWO, native=False)
    split(baseline), behind_router(candidate)
    events = candidate.logs["rollout"].events
    events[:] = [one for one in events if one[0] != "answered" or one[1]["sample"] != 6]
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == "INCONCLUSIVE", verdict.reason
    told = check(verdict, "engines")
    assert told.state == "not tested" and "1 sample" in told.evidence


@pytest.mark.slow
def test_a_router_that_gives_one_engine_nothing_is_a_finding(tmp_path: Path) -> None:
    baseline, candidate = pair(plan=TWO, native=False)
    split(baseline), behind_router(candidate)
    events = candidate.logs["second"].events
    candidate.logs["rollout"].events += [one for one in events if one[0] == "answered"]
    events[:] = [one for one in events if one[0] != "answered"]
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == "EQUIVALENT", verdict.reason
    [idle] = [one for one in verdict.findings if one.name == "idle engine"]
    assert "engine 1 of 2" in idle.summary and idle.severity == "warning"
    assert "engine 0: 0 of 96" in check(verdict, "engines").evidence


@pytest.mark.slow
def test_a_setting_that_differs_has_a_row_side_by_side(tmp_path: Path) -> None:
    baseline, candidate = pair(native=False)
    candidate.manifest["scenario"]["engine"]["tensor_parallel"] = 2
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.parity is not None
    assert [run.rows.get("engine.tensor_parallel") for run in verdict.parity.runs] == [1, 2]


@pytest.mark.slow
@pytest.mark.parametrize(("given", "named"), [("own", []), ("shared", ["RNG_COLLISION(engines)"]), ("", [])])
def test_native_samples_of_one_engine_that_have_the_seeds_of_the_other_are_told(
    tmp_path: Path, given: str, named: list[str]
) -> None:
    """And where an engine has no seed of a sample, that this was not tested."""
    baseline, candidate = pair(plan=TWO)
    for run in (baseline, candidate) if given else ():
        for frame in run.frames("native"):
            samples = np.asarray(frame.arrays["sample"])
            back = TWO.rollout.samples_per_prompt if given == "shared" and run is candidate else 0
            engine = samples // TWO.rollout.samples_per_prompt % 2
            frame.arrays["seed"] = samples - back * engine
    verdict = put(tmp_path, split(baseline), split(candidate))
    assert [(one.name, one.party) for one in verdict.causes] == [(name, "candidate") for name in named]
    for one in verdict.causes:
        assert "engine 1" in one.evidence and "of engine 0" in one.evidence
    told = [one for one in check(verdict, "native").details["not_compared"] if "share seeds" in one]
    assert len(told) == (0 if given else 2), told


def test_engines_that_recorded_nothing_size_no_loop() -> None:
    side: Any = SimpleNamespace(recording=SimpleNamespace(records=SimpleNamespace(
        starts=[SimpleNamespace(role="rollout", rank=rank) for rank in (0, 1, limits.RANKS)],
        settings=SimpleNamespace(engine=SimpleNamespace(engines=limits.ENGINES)))))  # fmt: skip
    assert numbered(side) == [0, 1, 2, limits.RANKS]
