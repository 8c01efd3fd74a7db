"""What was recorded in a part of the steps, or by a part of the processes, rules nothing out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from framework_recordings import job
from recordings import Recording, check, make, pair, put, scenario

from harness.parity import judge
from reports.model import SUSPICIONS

Plant = Callable[[Recording], None]
LATER = 2  # the step from which on a probe was silent


def _no_finish(run: Recording) -> None:
    for frame in run.frames("rollout"):
        if frame.step >= LATER:
            frame.fields["finish"] = [""] * len(frame.fields["finish"])


def _no_column(name: str) -> Plant:
    def plant(run: Recording) -> None:
        for frame in run.frames("experience"):
            if frame.step >= LATER:
                del frame.arrays[name]

    return plant


def _no_number(name: str) -> Plant:
    def plant(run: Recording) -> None:
        values = run.frame("experience", LATER).arrays[name]
        getattr(values, "values", values)[:] = np.nan

    return plant


def _no_experience(run: Recording) -> None:
    for log in run.logs.values():
        log.frames = [frame for frame in log.frames if not (frame.kind == "experience" and frame.step >= LATER)]


def _no_events(kind: str) -> Plant:
    def plant(run: Recording) -> None:
        for log in run.logs.values():
            log.events = [one for one in log.events if not (one[0] == kind and one[1].get("step", 0) >= LATER)]

    return plant


def _no_digest(part: str) -> Plant:
    def plant(run: Recording) -> None:
        for event in run.events("learner"):
            if event["step"] >= LATER:
                del event[part]

    return plant


def _nan_loss(run: Recording) -> None:
    for event in run.events("step", step=LATER):
        event["metrics"]["policy_loss"] = float("nan")


def _no_version(run: Recording) -> None:
    for frame in run.frames("experience"):
        if frame.step >= LATER:
            del frame.fields["weight_version"]


REQUIRED = {
    "finish reasons": (_no_finish, "finish-reasons"),
    "one column": (_no_column("value"), "experience"),
    "the references' log-probabilities": (_no_column("reference_logprob"), "experience"),
    "advantages that are no numbers": (_no_number("advantage"), "experience"),
    "rewards": (_no_column("reward"), "rewards"),
    "rewards that are no numbers": (_no_number("reward"), "rewards"),
    "margins": (_no_column("margin"), "engine-against-learner"),
    "the learner's version": (_no_version, "weight-sync"),
    "experience": (_no_experience, "trained-tokens"),
    "digests of the critic": (_no_digest("critic"), "learner"),
    "digests of the batch": (_no_digest("batch"), "learner"),
    "losses that are no numbers": (_nan_loss, "learner"),
}


@pytest.mark.parametrize("sides", ["candidate", "both"])
@pytest.mark.parametrize("what", REQUIRED)
def test_what_is_missing_from_some_step_on_rules_nothing_out(tmp_path: Path, what: str, sides: str) -> None:
    plant, name = REQUIRED[what]
    baseline, candidate = pair()
    for run in (baseline, candidate) if sides == "both" else (candidate,):
        plant(run)
    verdict = put(tmp_path, baseline, candidate)
    found = check(verdict, name)
    if what.endswith("no numbers") and sides == "candidate":
        assert (verdict.verdict, found.state) == ("DIVERGENT", "confirmed"), verdict.reason  # a number against none
        return
    assert (verdict.verdict, found.state) == ("INCONCLUSIVE", "not tested"), verdict.reason
    assert f"step {LATER}" in found.evidence and "candidate" in found.evidence
    assert any(name in line for line in verdict.missing)


def _no_boundary(run: Recording) -> None:
    for event in run.events("boundaries"):
        if event["step"] >= LATER:
            del event["output_last"]


def _no_cached(run: Recording) -> None:
    for frame in run.frames("rollout"):
        if frame.step >= LATER:
            del frame.arrays["cached"]


@pytest.mark.parametrize("sides", ["candidate", "both"])
@pytest.mark.parametrize(
    "plant, number",
    [(_no_events("boundaries"), 2), (_no_boundary, 2), (_no_events("shapes"), 3), (_no_cached, 8)],
    ids=["boundaries", "a field of them", "shapes", "cached"],
)
def test_a_suspicion_is_not_ruled_out_by_some_steps(tmp_path: Path, plant: Plant, number: int, sides: str) -> None:
    baseline, candidate = pair()
    for run in (baseline, candidate) if sides == "both" else (candidate,):
        plant(run)
    found = check(put(tmp_path, baseline, candidate), SUSPICIONS[number])
    assert found.state == "not tested", found.evidence


def test_a_framework_that_never_records_a_number_says_so_and_is_not_stopped(tmp_path: Path) -> None:
    runs = [job("baseline"), job("candidate")]
    for run in runs:
        for frame in run.frames("experience"):
            del frame.arrays["value"]
        for event in run.events("learner"):
            del event["critic"]
    verdict = put(tmp_path, *runs)
    assert check(verdict, "experience").state == check(verdict, "learner").state == "ruled out"
    assert "experience: no step has value in either run" in verdict.missing
    assert "learner: no step has digest of the critic in either run" in verdict.missing


def test_other_losses_of_equal_updates_are_a_difference(tmp_path: Path) -> None:
    baseline, candidate = pair()
    next(candidate.events("step", step=3))["metrics"]["policy_loss"] = -0.02
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == "DIVERGENT", verdict.reason
    place = verdict.parity.first_divergence
    assert (place.step, place.phase, place.field) == (3, "train", "policy_loss")


def test_the_last_digit_of_a_loss_is_no_difference(tmp_path: Path) -> None:
    baseline, candidate = pair()
    next(candidate.events("step", step=3))["metrics"]["policy_loss"] *= 1 + 1e-9
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == "EQUIVALENT", verdict.reason
    assert any(finding.name == "losses" for finding in verdict.findings)


@pytest.mark.parametrize("sides", ["candidate", "both"])
@pytest.mark.parametrize("role", ["actor", "critic", "reference", "reward"])
def test_a_process_without_a_record(tmp_path: Path, role: str, sides: str) -> None:
    baseline, candidate = pair()
    for run in (baseline, candidate) if sides == "both" else (candidate,):
        del run.logs[role]
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == "INCONCLUSIVE"
    assert f"no record of its {role}" in verdict.reason


def test_a_group_in_one_run_only(tmp_path: Path) -> None:
    baseline, candidate = pair()
    baseline.logs["critic"].event("group", name="critic ranks", backend="gloo", rank=0, world_size=2, members=[0, 1])
    found = check(put(tmp_path, baseline, candidate), SUSPICIONS[5])
    assert found.state == "not tested" and "critic ranks of critic, in the baseline" in found.evidence


@pytest.mark.parametrize("variant", ["order", "batch"])
def test_a_floor_without_a_variant_is_not_whole(tmp_path: Path, variant: str) -> None:
    baseline, candidate = pair()
    rollout = candidate.logs["rollout"]
    rollout.frames = [frame for frame in rollout.frames if frame.fields.get("variant") != variant]
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == "INCONCLUSIVE"
    assert check(verdict, "candidate-itself").state == "not tested" and variant in verdict.reason


@pytest.mark.parametrize("name, passes", [("sync", False), ("flush", False), ("rescore", True)])
def test_a_refused_call_passes_only_where_it_changes_nothing(tmp_path: Path, name: str, passes: bool) -> None:
    baseline, candidate = pair()
    candidate.logs["rollout"].event("call", name=name, step=2, ok=False, message="no room")
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == ("EQUIVALENT" if passes else "INCONCLUSIVE"), verdict.reason
    assert any(finding.name == "engine calls" for finding in verdict.findings)
    if not passes:
        assert f"refused its {name} in step 2: no room" in verdict.reason


@pytest.mark.parametrize("part, key", [("", "steps"), ("sampling", "temperature"), ("rollout", "prompts_per_step")])
def test_a_setting_that_is_no_number(tmp_path: Path, part: str, key: str) -> None:
    baseline, candidate = pair()
    for run in (baseline, candidate):
        told = run.manifest["scenario"]
        (told[part] if part else told)[key] = "many"
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == "INCONCLUSIVE" and key in verdict.reason and "no number" in verdict.reason


@pytest.mark.parametrize("fault", ["exit code", "mode"])
def test_a_second_run_that_failed_or_drew_otherwise_measures_no_floor(tmp_path: Path, fault: str) -> None:
    runs = {"a": job("baseline"), "b": job("candidate"), "again": job("baseline", started=10**9)}
    if fault == "exit code":
        runs["again"].manifest["exit_code"] = 1
    else:
        runs["again"].manifest["sampling_mode"] = "greedy"
    paths = {name: run.write(tmp_path / name) for name, run in runs.items()}
    verdict = judge(paths["a"], paths["b"], again={"baseline": paths["again"]})
    assert verdict.verdict == "INCONCLUSIVE"
    assert check(verdict, "baseline-itself").state == "not tested"
    assert "second run" in check(verdict, "baseline-itself").evidence


def test_the_controls_of_this_trial_pass(tmp_path: Path) -> None:
    assert put(tmp_path, *pair(plan=scenario(steps=4))).verdict == "EQUIVALENT"
    runs = {"a": job("baseline"), "b": job("candidate"), "again": job("baseline", started=10**9, noise=2e-7)}
    paths = {name: run.write(tmp_path / name) for name, run in runs.items()}
    verdict = judge(paths["a"], paths["b"], again={"baseline": paths["again"]})
    assert check(verdict, "baseline-itself").state == "ruled out", verdict.reason
    assert make("baseline").logs["critic"].closed
