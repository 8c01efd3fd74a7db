"""Confounders: what must be equal and is not, from where on it acts, and what of it is only a finding."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest
from recordings import check, make, other_prompts, pair, put, scenario

from harness.parity import judge
from probes.format import encode_manifest, read_manifest
from scenarios.settings import PPO, Model, Rollout, Scenario


def sides(change: Scenario, **options: object):
    return make("baseline", native=False), make("candidate", change, native=False, **options)  # type: ignore[arg-type]


def changed(**values: object) -> Scenario:
    return dataclasses.replace(scenario(), **values)  # type: ignore[arg-type]


@pytest.mark.by_day(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    "plan, name",
    [
        (changed(ppo=PPO(kl_coef=0.5)), "ppo.kl_coef"),
        (changed(ppo=PPO(actor_lr=1e-4)), "ppo.actor_lr"),
        (changed(model=Model(path="tiny", reward="other")), "model.reward"),
        (changed(rollout=Rollout(4, 4, "greedy")), "rollout.mode"),
    ],
)
def test_settings_that_must_be_equal(tmp_path: Path, plan: Scenario, name: str) -> None:
    verdict = put(tmp_path, *sides(plan))
    assert verdict.verdict == "CONFOUNDED", verdict.reason
    assert [one.name for one in verdict.confounders] == [name]


CUTS = [("world_size", 2), ("packing", True), ("micro_batch_size", 2)]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "value"), CUTS)
def test_another_cut_of_the_batch_that_rounds_otherwise(tmp_path: Path, name: str, value: object) -> None:
    baseline, candidate = sides(changed(ppo=dataclasses.replace(scenario().ppo, **{name: value})))  # type: ignore[arg-type]
    next(candidate.events("learner", step=5))["critic"] = "0" * 32
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == "CONFOUNDED", verdict.reason
    assert [one.name for one in verdict.confounders] == [f"ppo.{name}"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("step", "factor", "verdict", "names"),
    [
        (5, 1 + 2e-7, "EQUIVALENT", []),  # the last update: nothing comes after it
        (3, 1 + 2e-7, "CONFOUNDED", []),
        (5, 1.001, "DIVERGENT", ["TRAINER(size of micro-batches in the loss)"]),
        (3, 0.97, "DIVERGENT", ["TRAINER(size of micro-batches in the loss)"]),
        (3, math.nan, "CONFOUNDED", []),
    ],
)
def test_another_cut_of_the_batch_is_held_to_the_gradient_of_the_update_that_parts(
    tmp_path: Path, step: int, factor: float, verdict: str, names: list[str]
) -> None:
    baseline, candidate = sides(changed(ppo=dataclasses.replace(scenario().ppo, micro_batch_size=2)))
    next(candidate.events("learner", step=step))["critic"] = "0" * 32
    for recording, by in ((baseline, 1.0), (candidate, factor)):
        for event in recording.events("learner"):
            event["norms"] = {"actor": [0.5, 0.4], "critic": [0.25 * by, 0.2]}
    found = put(tmp_path, baseline, candidate)
    assert found.verdict == verdict, found.reason
    assert [one.name for one in found.causes] == names
    assert [one.name for one in found.confounders] == ([] if step == 5 else ["ppo.micro_batch_size"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sizes", "factor", "verdict", "confounders"),
    [
        ((4, 4), 1 + 2e-7, "DIVERGENT", []),
        ((3, 5), 1 + 2e-7, "CONFOUNDED", ["micro-batches of the learner"]),
        ((4, 3), 1 + 2e-7, "DIVERGENT", []),  # other samples, and no other cut of the same ones
        ((3, 5), 0.97, "DIVERGENT", ["micro-batches of the learner"]),
    ],
)
def test_micro_batches_that_no_setting_tells(
    tmp_path: Path, sizes: tuple[int, ...], factor: float, verdict: str, confounders: list[str]
) -> None:
    baseline, candidate = make("baseline", native=False), make("candidate", native=False)
    next(candidate.events("learner", step=3))["critic"] = "0" * 32
    for recording, batches, by in ((baseline, (4, 4), 1.0), (candidate, sizes, factor)):
        for size in batches:
            recording.logs["actor"].event("shapes", step=3, phase="actor_forward", tensors={}, samples=size)
        for event in recording.events("learner"):
            event["norms"] = {"actor": [0.5, 0.4], "critic": [0.25 * by, 0.2]}
    found = put(tmp_path, baseline, candidate)
    assert found.verdict == verdict, found.reason
    assert [confounder.name for confounder in found.confounders] == confounders
    named = [cause.name for cause in found.causes]
    assert named == (["TRAINER(size of micro-batches in the loss)"] if factor == 0.97 else
                     ["UNEXPLAINED"] if verdict == "DIVERGENT" else [])  # fmt: skip


@pytest.mark.slow
def test_other_data_of_runs_that_do_not_train_is_a_confounder_in_any_step(tmp_path: Path) -> None:
    baseline, candidate = sides(changed(train=False))
    baseline.manifest["scenario"]["train"] = False
    for recording in (baseline, candidate):
        recording.drop("experience")
    other_prompts(candidate, 3)
    assert [one.name for one in put(tmp_path, baseline, candidate).confounders] == ["data"]


@pytest.mark.slow
def test_a_digest_of_no_prompts_that_were_rolled_out_is_damage_and_no_confounder(tmp_path: Path) -> None:
    baseline, candidate = pair(native=False)
    candidate.made = {}
    next(candidate.events("data", step=3))["prompts"] = "0" * 32
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == "INCONCLUSIVE" and not verdict.confounders
    assert any("step 3" in line for line in verdict.missing)


@pytest.mark.slow
def test_a_process_that_says_two_versions_of_a_package_is_damage_and_no_confounder(tmp_path: Path) -> None:
    baseline, candidate = pair(native=False)
    environment = next(candidate.events("environment"))
    environment["packages"] = {**environment["packages"], "torch": "2.13.1"}
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == "INCONCLUSIVE" and not verdict.confounders
    assert any("torch 2.13.0 and 2.13.1" in line for line in verdict.missing)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "value"), CUTS)
def test_another_cut_of_the_batch_that_changed_no_bit_of_any_update(tmp_path: Path, name: str, value: object) -> None:
    baseline, candidate = sides(changed(ppo=dataclasses.replace(scenario().ppo, **{name: value})))  # type: ignore[arg-type]
    verdict = put(tmp_path / "told", baseline, candidate)
    assert verdict.verdict == "EQUIVALENT" and not verdict.confounders, verdict.reason
    next(candidate.events("learner", step=3)).pop("batch")
    verdict = put(tmp_path / "untold", baseline, candidate)
    assert verdict.verdict == "CONFOUNDED" and [one.name for one in verdict.confounders] == [f"ppo.{name}"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "plan",
    [
        changed(ppo=PPO(checkpoint_every=3)),
        changed(engine=dataclasses.replace(scenario().engine, seed=9)),
        changed(name="another name"),
    ],
)
def test_settings_that_may_differ(tmp_path: Path, plan: Scenario) -> None:
    verdict = put(tmp_path, *sides(plan))
    assert verdict.verdict == "EQUIVALENT", verdict.reason
    assert verdict.confounders == []


@pytest.mark.slow
def test_an_engine_parameter_that_differs_is_a_finding_with_its_effect(tmp_path: Path) -> None:
    verdict = put(tmp_path, *sides(changed(engine=dataclasses.replace(scenario().engine, seed=9))))
    finding = next(one for one in verdict.findings if one.name == "CONFIG(seed)")
    assert "none" in finding.effect


@pytest.mark.slow
def test_an_inverted_eager_flag_moves_nothing_and_is_a_finding_all_the_same(tmp_path: Path) -> None:
    baseline, candidate = pair(native=False)
    for info in candidate.events("engine_info"):
        info["resolved"]["enforce_eager"] = False
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == "EQUIVALENT"
    finding = next(one for one in verdict.findings if one.name == "CONFIG(enforce_eager)")
    assert finding.severity == "warning" and finding.where == "candidate" and "none" in finding.effect
    assert check(verdict, "engine-parameter-map").state == "confirmed"


@pytest.mark.slow
def test_more_context_than_asked_is_no_finding_and_less_is(tmp_path: Path) -> None:
    for length, state in ((136, "ruled out"), (126, "confirmed")):
        baseline, candidate = pair(native=False)
        for info in candidate.events("engine_info"):
            info["resolved"]["max_model_len"] = length
        assert check(put(tmp_path / str(length), baseline, candidate), "engine-parameter-map").state == state


@pytest.mark.slow
def test_prompts_that_differ_from_a_step_on_leave_the_steps_before_judged(tmp_path: Path) -> None:
    baseline, candidate = pair(native=False)
    for data in candidate.events("data"):
        if data["step"] >= 4:
            data["prompts"] = "0" * 32
    for frame in candidate.frames("rollout"):
        if frame.step >= 4:
            for name in ("prompt", "prompt_seen"):
                frame.arrays[name].values = (frame.arrays[name].values + 3) % 2000
            frame.arrays["output"].values = (frame.arrays["output"].values + 3) % 2000
            candidate.frame("experience", frame.step).arrays["tokens"] = frame.arrays["output"].copy()
    verdict = put(tmp_path / "clean", baseline, candidate)
    assert verdict.verdict == "CONFOUNDED", verdict.reason
    assert [one.name for one in verdict.confounders] == ["data"]
    candidate.frame("rollout", 1).arrays["logprob"].values[3] -= 0.5
    verdict = put(tmp_path / "fault", baseline, candidate)
    assert verdict.verdict == "DIVERGENT" and verdict.parity.first_divergence.step == 1


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_the_prompts_of_every_rank_are_compared(tmp_path: Path, rank: int) -> None:
    sides = pair(native=False)
    for side in sides:
        trainer = side.logs["trainer"]
        twice = [[one, (one[0], {**one[1]})] if one[0] == "data" else [one] for one in trainer.events]
        trainer.events = [event for events in twice for event in events]
    told = [event for event in sides[1].events("data") if event["step"] == 2]
    assert len(told) == 2
    sides[1].made = {}
    other_prompts(sides[1], 2)
    told[rank]["prompts"] = "0" * 32
    verdict = put(tmp_path, *sides)
    assert [one.summary for one in verdict.confounders] == ["the prompts differ in step 2"]


@pytest.mark.slow
def test_prompts_that_differ_without_a_digest_of_the_data_are_seen_in_the_frames(tmp_path: Path) -> None:
    baseline, candidate = pair(native=False)
    for recording in (baseline, candidate):
        recording.drop("data")
    frame = candidate.frame("rollout", 5)
    for name in ("prompt", "prompt_seen"):
        frame.arrays[name].values[3] += 1
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == "CONFOUNDED", verdict.reason


@pytest.mark.slow
def test_other_initial_weights_leave_each_engine_against_its_learner(tmp_path: Path) -> None:
    baseline, candidate = pair(native=False)
    for weights in candidate.events("weights"):
        weights["digests"] = {name: digest[::-1] for name, digest in weights["digests"].items()}
    verdict = put(tmp_path / "clean", baseline, candidate)
    assert verdict.verdict == "CONFOUNDED" and "initial weights" in {one.name for one in verdict.confounders}
    assert verdict.coverage["compared_tokens"] == 0
    assert check(verdict, "engine-against-learner").state == "ruled out"
    candidate.frame("rollout", 2).arrays["logprob"].values[3] -= 0.5
    verdict = put(tmp_path / "fault", baseline, candidate)
    assert verdict.verdict == "DIVERGENT", verdict.reason


@pytest.mark.slow
def test_digests_of_another_format_version_are_not_compared(tmp_path: Path) -> None:
    """They were made by another hash: all differ, and none says that anything differs."""
    baseline, candidate = pair(native=False)
    for event in (*candidate.events("weights"), *candidate.events("learner"), *candidate.events("data")):
        for name in {"actor", "critic", "batch", "prompts"} & set(event):
            event[name] = event[name][::-1]
        event |= {"digests": {name: one[::-1] for name, one in event.get("digests", {}).items()}}
    assert put(tmp_path / "same", baseline, candidate).verdict == "CONFOUNDED"
    put(tmp_path / "old", baseline, candidate)
    folder = tmp_path / "old" / "candidate"
    (folder / "run.json").write_bytes(encode_manifest(read_manifest(folder) | {"format_version": 1}))
    verdict = judge(tmp_path / "old" / "baseline", tmp_path / "old" / "candidate")
    assert verdict.confounders == [] and verdict.causes == []
    assert verdict.coverage["compared_tokens"] > 0
    assert check(verdict, "learner").state == "not tested"
    assert "digests were not compared: those of the baseline were made by SHA-256, those of the candidate were made " \
        "by BLAKE2b" in verdict.missing  # fmt: skip


@pytest.mark.slow
def test_learners_part_after_a_confounder_and_are_not_blamed(tmp_path: Path) -> None:
    verdict = put(tmp_path, *sides(scenario(train_batch_size=8), parted=1))
    assert check(verdict, "learner").state == "not tested"
    assert verdict.coverage["steps_not_compared"] == 5 and verdict.causes == []


@pytest.mark.slow
def test_without_weight_digests_nothing_is_judged_after_a_confounder(tmp_path: Path) -> None:
    baseline, candidate = sides(scenario(train_batch_size=8), parted=1)
    for recording in (baseline, candidate):
        recording.drop("weights", "learner")
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == "CONFOUNDED", verdict.reason
    assert verdict.coverage["steps_not_compared"] == 5


@pytest.mark.slow
def test_a_thread_count_is_a_finding_and_a_device_a_confounder(tmp_path: Path) -> None:
    baseline, candidate = make("baseline", native=False), make("candidate", environment=8, native=False)
    verdict = put(tmp_path / "threads", baseline, candidate)
    assert verdict.verdict == "EQUIVALENT"
    assert any("OMP_NUM_THREADS" in one.summary for one in verdict.findings)
    for event in candidate.events("environment"):
        event["device"]["name"] = "Another Accelerator"
    for event in baseline.events("environment"):
        event["device"]["name"] = "An Accelerator"
    verdict = put(tmp_path / "device", baseline, candidate)
    assert verdict.verdict == "CONFOUNDED" and "Accelerator" in verdict.account


@pytest.mark.slow
@pytest.mark.parametrize(("other", "second"), [("verl", "verl"), ("", "the reference scenario")])
def test_jobs_of_two_frameworks_are_said_first(tmp_path: Path, other: str, second: str) -> None:
    left, right = sides(changed(ppo=PPO(world_size=2)))
    for recording, name, framework in ((left, "a", "trl"), (right, "b", other)):
        recording.manifest["framework"] = framework
        recording.write(tmp_path / name)
    verdict = judge(tmp_path / "a", tmp_path / "b")
    assert verdict.verdict == "CONFOUNDED"
    assert f"the baseline is a job of trl and the candidate one of {second}: " in verdict.account
