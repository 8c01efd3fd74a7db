"""A user's job run a second time: its floor, where it stops being itself, and what that excuses and does not."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from framework_recordings import PLAN, job
from recordings import Recording, causes, check, digest, jagged, make, other_prompts, scenario

from harness.parity import judge
from harness.parity.subjects.precision.observed_floor import CAPS, VARIANTS
from reports.model import Verdict
from scenarios.settings import Scenario

Plant = Callable[[Recording], None]


def nothing(recording: Recording) -> None:
    pass


def judged(
    folder: Path, *, candidate: Plant = nothing, again: Plant = nothing, plan: Scenario = PLAN, noise: float = 3e-7,
    side: str = "baseline",
) -> Verdict:  # fmt: skip
    """The verdict on a pair, with faults planted in its candidate and in the second run of one side."""
    one, two = job("baseline", plan=plan), job("candidate", plan=plan)
    three = job(side, plan=plan, noise=noise * 1.1, started=10**9)
    candidate(two)
    again(three)
    paths = {name: made.write(folder / name) for name, made in (("a", one), ("b", two), ("again", three))}
    return judge(paths["a"], paths["b"], native=False, again={side: paths["again"]})


def shifted(step: int, by: float) -> Plant:
    def plant(recording: Recording) -> None:
        recording.frame("rollout", step).arrays["logprob"].values[:] += by

    return plant


def reordered(step: int) -> Plant:
    """Seen with verl: the learner takes equal samples in another order, so that its weights part in their last bits."""

    def plant(recording: Recording) -> None:
        recording.frame("experience", step).fields["order"] = [3, 1, 2, 0]
        for later in range(step, PLAN.steps):
            next(recording.events("learner", step=later)).update(actor=digest("other", later))
            for source in ("learner", "received"):
                for weights in recording.events("weights", source=source, version=later + 1):
                    weights["digests"] = {name: digest(name, later, "other") for name in weights["digests"]}

    return plant


def rewarded(step: int) -> Plant:
    def plant(recording: Recording) -> None:
        recording.frame("experience", step).arrays["reward"][5] += 1.0

    return plant


def redrawn(step: int) -> Plant:
    """Other tokens at equal weights and draws."""

    def plant(recording: Recording) -> None:
        frame = recording.frame("rollout", step)
        frame.arrays["output"] = jagged([(row + 1) % 2000 + 3 for row in frame.arrays["output"].rows()])
        recording.frame("experience", step).arrays["tokens"] = frame.arrays["output"].copy()

    return plant


@pytest.mark.slow
def test_a_job_that_repeats_itself_can_be_equivalent(tmp_path: Path) -> None:
    verdict = judged(tmp_path)
    assert verdict.verdict == "EQUIVALENT", verdict.reason
    assert verdict.parity is not None and 0 < verdict.parity.floor["combined"] < CAPS["float32"] / 10
    assert verdict.parity.floor["candidate"] == "not measured"
    itself = check(verdict, "baseline-itself")
    assert itself.state == "ruled out" and "6 steps" in itself.evidence
    assert check(verdict, "candidate-itself").state == "not tested"
    assert "floor" in check(verdict, "candidate-itself").evidence
    assert verdict.coverage["repeated"] == {"baseline": {"steps": 6, "parts_at_step": None, "why": ""}}
    assert any(all(words in item for words in VARIANTS.values()) for item in verdict.missing)


@pytest.mark.slow
def test_without_it_nothing_passes(tmp_path: Path) -> None:
    one, two = job("baseline").write(tmp_path / "a"), job("candidate").write(tmp_path / "b")
    verdict = judge(one, two, native=False)
    assert verdict.verdict == "INCONCLUSIVE" and "the floor was not measured" in verdict.account
    assert "repeated" not in verdict.coverage


@pytest.mark.slow
def test_either_side_can_be_run_again_and_the_other_is_measured_by_it(tmp_path: Path) -> None:
    verdict = judged(tmp_path, side="candidate")
    assert verdict.verdict == "EQUIVALENT", verdict.reason
    assert check(verdict, "candidate-itself").state == "ruled out"
    assert check(verdict, "baseline-itself").state == "not tested"


@pytest.mark.slow
@pytest.mark.parametrize("again", [nothing, reordered(3)])
def test_a_difference_beyond_the_measured_floor_diverges_though_the_cap_would_allow_it(
    tmp_path: Path, again: Plant
) -> None:
    verdict = judged(tmp_path, candidate=shifted(1, 6e-5), again=again)
    assert verdict.verdict == "DIVERGENT", verdict.reason
    assert verdict.parity is not None and verdict.parity.first_divergence is not None
    assert verdict.parity.first_divergence.step == 1


@pytest.mark.slow
def test_many_other_tokens_of_the_candidate_are_no_ties(tmp_path: Path) -> None:
    verdict = judged(tmp_path, candidate=redrawn(2))
    assert verdict.verdict == "DIVERGENT" and check(verdict, "tokens").state == "confirmed"
    assert verdict.parity is not None and verdict.parity.first_divergence is not None
    assert verdict.parity.first_divergence.step == 2


@pytest.mark.slow
def test_one_other_token_without_a_margin_is_neither_a_pass_nor_a_fault(tmp_path: Path) -> None:
    def plant(recording: Recording) -> None:
        rows = recording.frame("rollout", 2).arrays["output"].rows()
        rows[3] = rows[3].copy()
        rows[3][-1] += 1
        for kind, name in (("rollout", "output"), ("experience", "tokens")):
            recording.frame(kind, 2).arrays[name] = jagged(rows)

    verdict = judged(tmp_path, candidate=plant)
    assert verdict.verdict == "INCONCLUSIVE" and check(verdict, "tokens").state == "not tested", verdict.reason


@pytest.mark.slow
def test_a_noisy_job_does_not_excuse_itself(tmp_path: Path) -> None:
    verdict = judged(tmp_path, again=shifted(2, 1e-2))
    assert verdict.verdict == "DIVERGENT" and causes(verdict) == ["baseline-itself"]
    assert check(verdict, "baseline-itself").state == "confirmed"


@pytest.mark.slow
def test_a_job_that_draws_other_tokens_each_time_has_no_seed(tmp_path: Path) -> None:
    verdict = judged(tmp_path, again=redrawn(2))
    assert verdict.verdict == "DIVERGENT" and causes(verdict) == ["RNG(seed ignored)"]


@pytest.mark.slow
def test_a_job_whose_learner_takes_another_order_is_not_reproducible_and_is_judged_before(tmp_path: Path) -> None:
    verdict = judged(tmp_path, candidate=reordered(2), again=reordered(2))
    assert verdict.verdict == "INCONCLUSIVE", verdict.reason
    assert "step 2" in verdict.account
    assert "another order" in verdict.account
    itself = check(verdict, "baseline-itself")
    assert itself.state == "confirmed" and "what its engine drew before that" in itself.evidence
    assert check(verdict, "tokens").state == check(verdict, "logprobs").state == "ruled out"
    assert verdict.coverage["repeated"]["baseline"]["steps"] == 3  # those that were drawn with equal weights
    assert verdict.coverage["compared_tokens"] > 100 and verdict.causes == []


@pytest.mark.slow
def test_a_pair_that_agrees_does_not_pass_while_the_job_parts_from_itself(tmp_path: Path) -> None:
    assert judged(tmp_path, again=reordered(4)).verdict == "INCONCLUSIVE"


def learned(step: int) -> Plant:
    """Other weights of the same samples in the same order, and nothing after them."""

    def plant(recording: Recording) -> None:
        next(recording.events("learner", step=step)).update(actor=digest("other", step))

    return plant


@pytest.mark.slow
@pytest.mark.parametrize(("plant", "name"), [(rewarded, "rewards"), (learned, "learner")])
def test_what_the_job_does_not_repeat_by_itself_is_nobodys_fault(
    tmp_path: Path, plant: Callable[[int], Plant], name: str
) -> None:
    excused = judged(tmp_path / "both", candidate=plant(3), again=plant(2))
    assert check(excused, name).state == "not tested" and excused.causes == []
    assert excused.verdict == "INCONCLUSIVE" and "baseline-itself" in excused.account
    alone = judged(tmp_path / "alone", candidate=plant(3))
    assert alone.verdict == "DIVERGENT" and check(alone, name).state == "confirmed"
    before = judged(tmp_path / "before", candidate=plant(1), again=plant(2))
    assert before.verdict == "DIVERGENT" and check(before, name).state == "confirmed"


@pytest.mark.slow
def test_a_second_run_with_other_settings_is_none(tmp_path: Path) -> None:
    def plant(recording: Recording) -> None:
        recording.manifest["scenario"] = {**recording.manifest["scenario"], "seed": 5}

    verdict = judged(tmp_path, again=plant)
    assert verdict.verdict == "INCONCLUSIVE" and "seed is 0" in verdict.account
    assert verdict.parity is not None and verdict.parity.floor["combined"] == "not measured"


@pytest.mark.slow
def test_a_second_run_with_other_prompts_says_from_where_on(tmp_path: Path) -> None:
    def plant(recording: Recording) -> None:
        recording.made = {}
        other_prompts(recording, 2)
        next(recording.events("data", step=2))["prompts"] = digest("other")

    verdict = judged(tmp_path, again=plant)
    assert verdict.verdict == "INCONCLUSIVE" and "step 2" in verdict.account


@pytest.mark.slow
def test_a_torn_second_run_measures_nothing(tmp_path: Path) -> None:
    def plant(recording: Recording) -> None:
        recording.logs["rollout"].closed = False

    verdict = judged(tmp_path, again=plant)
    assert verdict.verdict == "INCONCLUSIVE" and "second run" in verdict.account


@pytest.mark.slow
def test_a_copy_of_the_first_run_measures_nothing(tmp_path: Path) -> None:
    one, two = job("baseline").write(tmp_path / "a"), job("candidate").write(tmp_path / "b")
    verdict = judge(one, two, native=False, again={"baseline": job("baseline").write(tmp_path / "copy")})
    assert verdict.verdict == "INCONCLUSIVE" and "a copy of another recording" in verdict.account


@pytest.mark.slow
def test_the_candidate_is_no_second_run_of_the_baseline(tmp_path: Path) -> None:
    one, two = job("baseline").write(tmp_path / "a"), job("candidate").write(tmp_path / "b")
    verdict = judge(one, two, native=False, again={"baseline": two})
    assert verdict.verdict == "INCONCLUSIVE" and "a copy of another recording" in verdict.account


@pytest.mark.slow
def test_a_run_of_another_version_is_no_second_run(tmp_path: Path) -> None:
    def plant(recording: Recording) -> None:
        next(recording.events("engine_info"))["version"] = "0.31.0"

    verdict = judged(tmp_path, again=plant)
    assert verdict.verdict == "INCONCLUSIVE" and "0.31.0" in verdict.account


def engineless(recording: Recording) -> None:
    recording.drop("engine_info")


@pytest.mark.slow
def test_a_job_whose_configuration_nobody_recorded_does_not_pass(tmp_path: Path) -> None:
    runs = {"a": job("baseline"), "b": job("candidate"), "again": job("baseline", started=10**9)}
    del runs["b"].manifest["scenario"]
    paths = {name: run.write(tmp_path / name) for name, run in runs.items()}
    verdict = judge(paths["a"], paths["b"], native=False, again={"baseline": paths["again"]})
    assert verdict.verdict == "INCONCLUSIVE"
    assert "how the candidate's job was configured is not recorded" in verdict.account


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["openrlhf", "trl"])
def test_a_job_that_says_nowhere_which_engine_drew_does_not_pass(tmp_path: Path, framework: str) -> None:
    runs = {"a": job("baseline"), "b": job("candidate"), "again": job("baseline", started=10**9)}
    engineless(runs["b"])
    for run in runs.values():
        run.manifest["framework"] = framework
    paths = {name: run.write(tmp_path / name) for name, run in runs.items()}
    verdict = judge(paths["a"], paths["b"], native=False, again={"baseline": paths["again"]})
    assert verdict.verdict == "INCONCLUSIVE"
    assert "which engine drew is not recorded of the candidate" in verdict.account


@pytest.mark.slow
def test_what_differs_differs_whichever_engine_drew(tmp_path: Path) -> None:
    def plant(recording: Recording) -> None:
        engineless(recording)
        shifted(2, 1e-2)(recording)

    verdict = judged(tmp_path, candidate=plant)
    assert verdict.verdict == "DIVERGENT"
    assert any("which engine drew is not recorded of the candidate" in item for item in verdict.missing)


@pytest.mark.slow
def test_a_recording_of_no_framework_has_to_say_it_too(tmp_path: Path) -> None:
    one, two = make("baseline", native=False), make("candidate", native=False)
    engineless(one)
    engineless(two)
    verdict = judge(one.write(tmp_path / "a"), two.write(tmp_path / "b"), native=False)
    assert verdict.verdict == "INCONCLUSIVE" and "engine" in verdict.account, verdict.reason


@pytest.mark.slow
@pytest.mark.parametrize("way", ["torn", "copy"])
def test_a_useless_second_run_takes_nothing_from_the_floor_that_a_run_carries_itself(tmp_path: Path, way: str) -> None:
    """The reference scenario's engines have drawn again by themselves; a second run that says nothing adds nothing."""
    plan = dataclasses.replace(scenario(), guided=False)
    one, two, again = (make(side, plan, native=False) for side in ("baseline", "candidate", "baseline"))
    if way == "torn":
        again.logs["rollout"].closed = False
        for opened in again.events("open"):
            opened["wall_ns"] += 10**9
    paths = [made.write(tmp_path / name) for made, name in ((one, "a"), (two, "b"), (again, "again"))]
    verdict = judge(paths[0], paths[1], native=False, again={"baseline": paths[2]})
    itself = check(verdict, "baseline-itself")
    assert verdict.verdict == "EQUIVALENT" and "second run" not in itself.evidence, itself.evidence
    assert all(words in itself.evidence for words in VARIANTS.values())
    assert any(item.startswith("baseline-itself: no second run: the second run") for item in verdict.missing)


def test_a_directory_that_is_no_recording_is_an_error(tmp_path: Path) -> None:
    one, two = job("baseline").write(tmp_path / "a"), job("candidate").write(tmp_path / "b")
    assert judge(one, two, native=False, again={"baseline": tmp_path / "none"}).verdict == "ERROR"


@pytest.mark.slow
def test_samplers_of_the_engines_own_need_not_repeat_themselves(tmp_path: Path) -> None:
    """One engine, version and seeds: samples part as soon as requests meet in other batches, which proves nothing."""
    plan = dataclasses.replace(scenario(mode="native"), guided=False)
    verdict = judged(tmp_path, plan=plan, again=redrawn(2))
    assert verdict.verdict == "INCONCLUSIVE", verdict.reason
    assert "step 2" in verdict.account and verdict.causes == []


# --- weights of a framework's job -------------------------------------------------------------------


@pytest.mark.slow
def test_samples_prove_the_weights_that_they_were_drawn_with(tmp_path: Path) -> None:
    sync = check(judged(tmp_path), "weight-sync")
    assert sync.state == "ruled out" and "the samples that were drawn" in sync.evidence
    assert sync.details["baseline"]["by_samples"] == [1, 2, 3, 4, 5, 0]


@pytest.mark.slow
def test_the_last_weights_have_no_samples_which_is_said(tmp_path: Path) -> None:
    assert any("version 6" in item for item in judged(tmp_path).missing)


@pytest.mark.slow
@pytest.mark.parametrize("version", [0, 3])
def test_a_version_whose_samples_have_no_log_probabilities_is_not_proven(tmp_path: Path, version: int) -> None:
    def plant(recording: Recording) -> None:
        del recording.frame("rollout", version).arrays["logprob"]

    sync = check(judged(tmp_path, candidate=plant), "weight-sync")
    assert sync.state == "not tested" and f"weight version {version}" in sync.evidence


@pytest.mark.slow
def test_samples_away_from_the_learner_prove_no_weights(tmp_path: Path) -> None:
    verdict = judged(tmp_path, candidate=shifted(3, 1e-2))
    assert verdict.verdict == "DIVERGENT" and check(verdict, "weight-sync").state == "not tested"


@pytest.mark.slow
def test_a_version_between_two_syncs_needs_one_of_its_own(tmp_path: Path) -> None:
    def plant(recording: Recording) -> None:
        trainer = recording.logs["trainer"]
        trainer.events = [one for one in trainer.events if not (one[0] == "sync" and one[1]["version"] == 3)]

    sync = check(judged(tmp_path, candidate=plant), "weight-sync")
    assert sync.state == "not tested" and "rolled out without a recorded sync" in sync.evidence


@pytest.mark.slow
def test_a_tensor_that_arrived_as_another_is_found(tmp_path: Path) -> None:
    def plant(recording: Recording) -> None:
        received = next(recording.events("weights", source="received", version=3))
        received["digests"] = {**received["digests"], next(iter(received["digests"])): "f" * 32}

    verdict = judged(tmp_path, candidate=plant)
    assert verdict.verdict == "DIVERGENT" and check(verdict, "weight-sync").state == "confirmed"
    assert np.isfinite(verdict.coverage["compared_tokens"])


@pytest.mark.slow
def test_a_second_run_without_log_probabilities_says_why_it_measures_nothing(tmp_path: Path) -> None:
    """Transformers' generate gives TRL none: its jobs have no floor, however equal they are."""
    runs = {"a": job("baseline"), "b": job("candidate"), "again": job("baseline", started=10**9)}
    for run in runs.values():
        for frame in run.frames("rollout"):
            del frame.arrays["logprob"]
    paths = {name: run.write(tmp_path / name) for name, run in runs.items()}
    verdict = judge(paths["a"], paths["b"], native=False, again={"baseline": paths["again"]})
    assert verdict.verdict == "INCONCLUSIVE"
    assert "no engine gave log-probabilities" in check(verdict, "baseline-itself").evidence
