"""What was recorded in a part of the steps, or by a part of the processes, rules nothing out."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from framework_recordings import job
from recordings import Recording, check, jagged, make, pair, put, scenario

from harness.parity import judge
from reports.model import SUSPICIONS

pytestmark = pytest.mark.slow

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


@pytest.mark.by_day(3)
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


@pytest.mark.by_day(3)
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
    assert any("experience: no step" in item for item in verdict.missing)
    assert any("learner: no step" in item for item in verdict.missing)


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


@pytest.mark.by_day(3)
@pytest.mark.parametrize("sides", ["candidate", "both"])
@pytest.mark.parametrize("role", ["actor", "critic", "reference", "reward"])
def test_a_process_without_a_record(tmp_path: Path, role: str, sides: str) -> None:
    baseline, candidate = pair()
    for run in (baseline, candidate) if sides == "both" else (candidate,):
        del run.logs[role]
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == "INCONCLUSIVE"
    assert f"no record of its {role}" in verdict.account


@pytest.mark.parametrize("sides", ["candidate", "both"])
def test_ranks_without_a_record(tmp_path: Path, sides: str) -> None:
    plan = scenario()
    plan = dataclasses.replace(plan, ppo=dataclasses.replace(plan.ppo, world_size=2))
    baseline, candidate = pair(plan=plan)
    assert put(tmp_path / "whole", baseline, candidate).verdict == "EQUIVALENT"
    for run in (baseline, candidate) if sides == "both" else (candidate,):
        for name in [name for name, log in run.logs.items() if log.rank == 1]:
            del run.logs[name]
    verdict = put(tmp_path / "half", baseline, candidate)
    assert verdict.verdict == "INCONCLUSIVE" and "(rank 1)" in verdict.account


@pytest.mark.by_day(2)
@pytest.mark.parametrize("value", [np.nan, -np.inf])
@pytest.mark.parametrize("each", [1, 2, 3])
def test_numbers_that_are_none_are_no_shift(tmp_path: Path, value: float, each: int) -> None:
    baseline, candidate = pair()
    candidate.frame("rollout", 2).arrays["logprob"].values[::each] = value
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == "DIVERGENT"
    assert [cause.name for cause in verdict.causes] == ["NUMERIC_FATAL"]
    assert "(the candidate)" in verdict.account


@pytest.mark.parametrize("lost", ["the event", "half of it"])
def test_a_version_of_which_the_engine_said_too_little_is_not_tested(tmp_path: Path, lost: str) -> None:
    baseline, candidate = pair()
    if lost == "the event":
        log = candidate.logs["rollout"]
        log.events = [one for one in log.events if not (one[0] == "weights" and one[1]["version"] == 3)]
    else:
        event = next(candidate.events("weights", source="received", version=3))
        event["digests"] = dict(list(event["digests"].items())[::2])
    verdict = put(tmp_path, baseline, candidate)
    assert (verdict.verdict, check(verdict, "weight-sync").state) == ("INCONCLUSIVE", "not tested"), verdict.reason
    assert "version 3" in verdict.account


def test_a_job_whose_prompts_lose_their_bos_every_time_repeats_itself(tmp_path: Path) -> None:
    runs = {"a": job("baseline"), "b": job("candidate"), "again": job("baseline", started=10**9)}
    for name in ("a", "again"):
        for frame in runs[name].frames("rollout"):
            frame.arrays["prompt_seen"] = jagged([row[1:] for row in frame.arrays["prompt_seen"].rows()])
    paths = {name: run.write(tmp_path / name) for name, run in runs.items()}
    verdict = judge(paths["a"], paths["b"], again={"baseline": paths["again"]})
    assert check(verdict, "baseline-itself").state == "ruled out", check(verdict, "baseline-itself").evidence
    assert verdict.verdict == "DIVERGENT"


@pytest.mark.parametrize("pair_", [(1.2e-9, 1.3e-9), (0.0, 1e-12)])
def test_losses_that_cancel_are_equal(tmp_path: Path, pair_: tuple[float, float]) -> None:
    runs = pair()
    for run, value in zip(runs, pair_, strict=True):
        next(run.events("step", step=3))["metrics"]["policy_loss"] = value
    assert put(tmp_path, *runs).verdict == "EQUIVALENT"


@pytest.mark.parametrize("both", [False, True])
def test_losses_that_were_not_recorded_are_no_pass(tmp_path: Path, both: bool) -> None:
    baseline, candidate = pair()
    for recording in (baseline, candidate) if both else (candidate,):
        recording.drop("step")
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == "INCONCLUSIVE"
    assert any(item.startswith("learner: policy_loss of step 0") for item in verdict.missing)


def _other_samples(run: Recording) -> None:
    for frame in run.frames("floor", variant="order"):
        frame.arrays["sample"] = frame.arrays["sample"] + 10**6


def _no_version_at_all(run: Recording) -> None:
    for frame in run.frames("rollout"):
        frame.fields["weight_version"] = "latest"


def _strange_proof(run: Recording) -> None:
    next(run.events("sync", version=3))["proof_tokens"] = "none"


def _two_digests(run: Recording) -> None:
    run.logs["trainer"].event("learner", step=3, actor="0" * 32, critic="1" * 32, batch="2" * 32)


def _empty_digests(run: Recording) -> None:
    for event in run.events("weights"):
        event["digests"] = dict.fromkeys(event["digests"], "")


def _half_a_close(run: Recording) -> None:
    run.logs["critic"].closed = False
    run.logs["critic"].event("close", ok=None, reason="", frames=0)


@pytest.mark.by_day(4)
@pytest.mark.parametrize("sides", ["candidate", "both"])
@pytest.mark.parametrize(
    "plant", [_other_samples, _no_version_at_all, _strange_proof, _two_digests, _empty_digests, _half_a_close]
)
def test_values_that_say_nothing_rule_nothing_out(tmp_path: Path, plant: Plant, sides: str) -> None:
    baseline, candidate = pair()
    for run in (baseline, candidate) if sides == "both" else (candidate,):
        plant(run)
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == "INCONCLUSIVE", verdict.reason


@pytest.mark.parametrize("ok", [None, "false"])
def test_a_sync_that_does_not_say_that_it_went_well(tmp_path: Path, ok: object) -> None:
    baseline, candidate = pair()
    next(candidate.events("sync", version=3))["ok"] = ok
    assert put(tmp_path, baseline, candidate).verdict == "DIVERGENT"


@pytest.mark.parametrize("key, value", [("margin", 1e9), ("alpha", 1e-300), ("alpha", "x")])
def test_a_native_test_that_nothing_fails(tmp_path: Path, key: str, value: object) -> None:
    baseline, candidate = pair()
    for run in (baseline, candidate):
        run.manifest["scenario"]["native"][key] = value
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == "INCONCLUSIVE" and f"native.{key}" in verdict.account


def test_native_samples_that_do_not_say_why_they_ended(tmp_path: Path) -> None:
    baseline, candidate = pair()
    for run in (baseline, candidate):
        for frame in run.frames("native"):
            frame.fields["finish"] = [""] * len(frame.fields["finish"])
    verdict = put(tmp_path, baseline, candidate)
    assert any("finish reasons of the native samples" in line for line in verdict.missing)


def test_an_environment_in_one_run_only(tmp_path: Path) -> None:
    baseline, candidate = pair()
    candidate.logs["critic"].events = [one for one in candidate.logs["critic"].events if one[0] != "environment"]
    found = check(put(tmp_path, baseline, candidate), SUSPICIONS[9])
    assert found.state == "not tested" and "critic" in found.evidence


@pytest.mark.parametrize("size", ["inf", "nan", 1e9, -1])
def test_a_world_that_is_no_number_of_ranks_is_no_defect_of_ours(tmp_path: Path, size: object) -> None:
    baseline, candidate = pair()
    for run in (baseline, candidate):
        run.manifest["scenario"]["ppo"]["world_size"] = size
        for opened in run.events("open"):
            opened["world_size"] = size
    assert put(tmp_path, baseline, candidate).verdict == "INCONCLUSIVE"


@pytest.mark.parametrize("train", [True, False])
def test_a_learner_that_one_run_alone_recorded(tmp_path: Path, train: bool) -> None:
    baseline, candidate = pair()
    for run in (baseline, candidate):
        run.manifest["scenario"]["train"] = train
    del candidate.logs["actor"]
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == "INCONCLUSIVE" and "(rank 0)" in verdict.account


@pytest.mark.parametrize("plant", ["another engine", "a second engine"])
def test_an_engine_that_is_another_than_the_runs(tmp_path: Path, plant: str) -> None:
    baseline, candidate = pair()
    infos = list(candidate.events("engine_info"))
    for info in infos if plant == "another engine" else infos[:1]:
        info["engine"] = "vllm"
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == "INCONCLUSIVE" and "sglang" in verdict.account


def test_an_engine_that_reports_the_learners_own_numbers(tmp_path: Path) -> None:
    baseline, candidate = pair()
    for frame in candidate.frames("rollout"):
        truth = baseline.frame("experience", frame.step).arrays["actor_logprob"]
        frame.arrays["logprob"].values = truth.values.copy()
    verdict = put(tmp_path, baseline, candidate)
    found = check(verdict, "engine-against-learner")
    assert (verdict.verdict, found.state) == ("INCONCLUSIVE", "not tested")
    assert "the log-probabilities of the candidate are the learner's" in found.evidence


def test_an_answer_beside_a_refusal_does_not_hide_it(tmp_path: Path) -> None:
    baseline, candidate = pair()
    candidate.logs["rollout"].event("call", name="flush", step=2, ok=False, message="no room", reply={"ok": True})
    assert put(tmp_path, baseline, candidate).verdict == "INCONCLUSIVE"


@pytest.mark.parametrize("sides", ["candidate", "both"])
def test_a_version_of_which_the_learner_said_too_little(tmp_path: Path, sides: str) -> None:
    baseline, candidate = pair()
    for run in (baseline, candidate) if sides == "both" else (candidate,):
        for event in run.events("weights", version=3):
            event["digests"] = dict(list(event["digests"].items())[:1])
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict != "EQUIVALENT"
    assert check(verdict, "weight-sync").state == "not tested"


def test_optional_fields_that_say_nothing(tmp_path: Path) -> None:
    baseline, candidate = pair()
    for run in (baseline, candidate):
        for sync in run.events("sync"):
            sync["proof_tokens"] = None
        for frame in [*run.frames("rollout"), *run.frames("experience")]:
            frame.fields["weight_version"] = float(frame.fields["weight_version"])
    assert put(tmp_path, baseline, candidate).verdict == "EQUIVALENT"


def test_a_group_in_one_run_only(tmp_path: Path) -> None:
    baseline, candidate = pair()
    baseline.logs["critic"].event("group", name="critic ranks", backend="gloo", rank=0, world_size=2, members=[0, 1])
    found = check(put(tmp_path, baseline, candidate), SUSPICIONS[5])
    assert found.state == "not tested" and "critic ranks" in found.evidence


@pytest.mark.parametrize("variant", ["order", "batch"])
def test_a_floor_without_a_variant_is_not_whole(tmp_path: Path, variant: str) -> None:
    baseline, candidate = pair()
    rollout = candidate.logs["rollout"]
    rollout.frames = [frame for frame in rollout.frames if frame.fields.get("variant") != variant]
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == "INCONCLUSIVE"
    assert check(verdict, "candidate-itself").state == "not tested" and variant in verdict.account


@pytest.mark.parametrize("name, passes", [("sync", False), ("flush", False), ("rescore", True)])
def test_a_refused_call_passes_only_where_it_changes_nothing(tmp_path: Path, name: str, passes: bool) -> None:
    baseline, candidate = pair()
    for run, ok in ((baseline, True), (candidate, False)):
        run.logs["rollout"].event("call", name=name, step=2, ok=ok, message="" if ok else "no room")
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == ("EQUIVALENT" if passes else "INCONCLUSIVE"), verdict.reason
    assert any(finding.name == "engine calls" for finding in verdict.findings)
    if not passes:
        assert f"refused its {name} in step 2: no room" in verdict.account


@pytest.mark.parametrize("part, key", [("", "steps"), ("sampling", "temperature"), ("rollout", "prompts_per_step")])
def test_a_setting_that_is_no_number(tmp_path: Path, part: str, key: str) -> None:
    baseline, candidate = pair()
    for run in (baseline, candidate):
        told = run.manifest["scenario"]
        (told[part] if part else told)[key] = "many"
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == "INCONCLUSIVE" and key in verdict.account and "number" in verdict.account


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


def _aborted(run: Recording, reason: str) -> None:
    for frame in run.frames("rollout"):
        if frame.step >= LATER:
            frame.fields["finish"] = [reason] * len(frame.fields["finish"])


@pytest.mark.parametrize("reason", ["abort", "error"])
def test_samples_that_no_engine_ended_of_itself_say_nothing_of_ends(tmp_path: Path, reason: str) -> None:
    baseline, candidate = pair()
    for run in (baseline, candidate):
        _aborted(run, reason)
    verdict = put(tmp_path, baseline, candidate)
    found = check(verdict, "finish-reasons")
    assert (verdict.verdict, found.state) == ("INCONCLUSIVE", "not tested"), verdict.reason
    assert "gave up" in found.evidence and f"step {LATER}" in found.evidence


def test_samples_that_one_engine_gave_up_are_a_difference(tmp_path: Path) -> None:
    baseline, candidate = pair()
    _aborted(candidate, "abort")
    assert put(tmp_path, baseline, candidate).verdict == "DIVERGENT"


@pytest.mark.parametrize("sides", ["candidate", "both"])
def test_cached_tokens_that_no_prompt_can_have(tmp_path: Path, sides: str) -> None:
    baseline, candidate = pair()
    for run in (baseline, candidate) if sides == "both" else (candidate,):
        run.frame("rollout", LATER).arrays["cached"][:] = 10**6
    found = check(put(tmp_path, baseline, candidate), SUSPICIONS[8])
    assert found.state == "not tested" and f"step {LATER}" in found.evidence, found.evidence


def test_weights_that_no_update_changed_prove_no_sync(tmp_path: Path) -> None:
    """An engine that kept the first weights for ever would look the same."""
    baseline, candidate = pair()
    for run in (baseline, candidate):
        for source in ("learner", "received"):
            events = list(run.events("weights", source=source))
            for event in events:
                event["digests"] = dict(events[0]["digests"])
    verdict = put(tmp_path, baseline, candidate)
    found = check(verdict, "weight-sync")
    assert (verdict.verdict, found.state) == ("INCONCLUSIVE", "not tested"), verdict.reason
    assert "no tensor changed" in found.evidence


def test_one_update_that_changes_nothing_is_told_of_nobody(tmp_path: Path) -> None:
    """The first step of a warm-up has a learning rate of nought."""
    baseline, candidate = pair()
    for run in (baseline, candidate):
        for source in ("learner", "received"):
            first = next(run.events("weights", source=source, version=0))
            next(run.events("weights", source=source, version=1))["digests"] = dict(first["digests"])
    assert put(tmp_path, baseline, candidate).verdict == "EQUIVALENT"


def _in_two_frames(run: Recording, **second: object) -> None:
    """The rollout of a step as a framework writes it, prompt by prompt."""
    for log in run.logs.values():
        frames = []
        for frame in log.frames:
            if frame.kind != "rollout" or frame.step != LATER:
                frames.append(frame)
                continue
            half = len(frame.arrays["sample"]) // 2
            for part, fields in ((slice(0, half), {}), (slice(half, None), second)):
                arrays = {
                    name: jagged(values.rows()[part]) if hasattr(values, "rows") else values[part]
                    for name, values in frame.arrays.items()
                }
                told = {**frame.fields, "finish": frame.fields["finish"][part], **fields}
                frames.append(dataclasses.replace(frame, arrays=arrays, fields=told))
        log.frames = frames


def test_samples_of_a_step_that_were_drawn_with_several_versions(tmp_path: Path) -> None:
    baseline, candidate = pair()
    for run in (baseline, candidate):
        _in_two_frames(run)
    assert put(tmp_path / "one", baseline, candidate).verdict == "EQUIVALENT"
    baseline, candidate = pair()
    for run in (baseline, candidate):
        _in_two_frames(run, weight_version=LATER - 1)
    verdict = put(tmp_path / "two", baseline, candidate)
    assert verdict.verdict == "INCONCLUSIVE", verdict.reason


def test_turns_that_a_tool_wrote_between_are_not_tested(tmp_path: Path) -> None:
    baseline, candidate = pair()
    for run in (baseline, candidate):
        frame = run.frame("rollout", LATER)
        rows = {name: frame.arrays[name].rows() for name in ("output", "logprob")}
        longest = max(range(len(rows["output"])), key=lambda row: len(rows["output"][row]))
        for name, those in rows.items():  # the first turn; the experience has all of them
            those[longest] = those[longest][:3]
            frame.arrays[name] = jagged(those)
        frame.fields["uncompared"] = "later turns of a sample are not recorded"
    verdict = put(tmp_path, baseline, candidate)
    found = check(verdict, "trained-tokens")
    assert (verdict.verdict, found.state) == ("INCONCLUSIVE", "not tested"), verdict.reason
    assert "later turns of a sample are not recorded" in found.evidence
