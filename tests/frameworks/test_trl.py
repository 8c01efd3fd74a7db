"""TRL's own GRPO job, recorded: with Transformers' generate, twice and with another seed, and with vLLM."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from framework_jobs import LIMIT_S, assert_hooks, assert_tokens_agree, rows, trl

from harness.parity.audit import audit
from harness.parity.verdict import judge
from probes.format import Run

pytestmark = pytest.mark.timeout(2 * LIMIT_S)
STEPS, SAMPLES, GROUP = 3, 16, 4


@pytest.fixture(scope="module")
def recording(recordings: Path) -> Run:
    return trl(recordings, "trl", "--save")


@pytest.fixture(scope="module")
def colocated(recordings: Path) -> Run:
    return trl(recordings, "trl-vllm", "--vllm")


def test_every_hook_that_a_job_calls_fires(recording: Run) -> None:
    assert_hooks(recording)
    fired = recording.manifest["hooks"]["fired"]
    assert fired["trl.trainer.grpo_trainer:GRPOTrainer._generate"] == STEPS
    assert fired["trl.trainer.grpo_trainer:GRPOTrainer._save_checkpoint"] == 1
    assert all("vllm" in symbol.lower() for symbol in recording.manifest["hooks"]["never"])


def test_the_job_is_known_from_its_recording(recording: Run) -> None:
    manifest = recording.manifest
    assert (manifest["framework"], manifest["framework_version"], manifest["exit_code"]) == ("trl", "1.16.0", 0)
    assert manifest["scenario"]["rollout"] == {"mode": "native", "prompts_per_step": 4, "samples_per_prompt": GROUP}
    assert manifest["scenario"]["steps"] == STEPS and manifest["backend"] == "transformers"
    assert manifest["scenario"]["framework"]["learning_rate"] == 1e-3 and manifest["seeds"]["trainer"] == 0
    assert any(line.startswith("logprob: Transformers") for line in manifest["missing"])
    [tokenizer] = recording.events("tokenizer")
    assert tokenizer["size"] > tokenizer["eos"] and tokenizer["generation_prompt"]
    [checkpoint] = recording.events("checkpoint")
    assert Path(checkpoint["path"]).is_dir() and checkpoint["step"] == STEPS


def test_what_was_drawn_is_what_was_trained_on(recording: Run) -> None:
    assert_tokens_agree(recording, STEPS, SAMPLES)
    for step in rows(recording, "experience").values():
        for row in step.values():
            assert len(row["actor_logprob"]) == len(row["reference_logprob"]) == len(row["tokens"])


def test_a_group_has_one_prompt_and_its_advantages_cancel(recording: Run) -> None:
    drawn, trained = rows(recording, "rollout"), rows(recording, "experience")
    for step in range(STEPS):
        for first in range(0, SAMPLES, GROUP):
            assert len({tuple(drawn[step][first + i]["prompt"]) for i in range(GROUP)}) == 1
            assert sum(trained[step][first + i]["advantage"][0] for i in range(GROUP)) == pytest.approx(0, abs=1e-4)


def test_the_actor_is_the_reference_before_the_first_update_and_not_after(recording: Run) -> None:
    apart = {
        step: max(
            float(np.abs(np.subtract(row["actor_logprob"], row["reference_logprob"])).max()) for row in found.values()
        )
        for step, found in rows(recording, "experience").items()
    }
    assert apart[0] < 1e-4 < apart[1]


def test_the_same_seed_is_the_same_run(recordings: Path, recording: Run) -> None:
    again = trl(recordings, "trl-again", "--save")
    verdict = judge(recording, again)
    states = {check.name: check.state for check in verdict.parity.checks} if verdict.parity else {}
    for name in ("tokens", "lengths", "finish-reasons", "experience", "rewards", "learner"):
        assert states[name] == "ruled out", (name, verdict.reason)
    assert verdict.coverage["compared_tokens"] == verdict.coverage["tokens"] > 0
    assert states["engine-against-learner"] == "not tested" and verdict.verdict == "INCONCLUSIVE"
    assert any("generate gives TRL no log-probabilities" in line for line in verdict.missing)


def test_another_seed_is_confounded(recordings: Path, recording: Run) -> None:
    verdict = judge(recording, trl(recordings, "trl-seed", "--save", "--seed", "1"))
    assert verdict.verdict == "CONFOUNDED" and "seed is 0 in the baseline and 1 in the candidate" in verdict.account


def test_a_colocated_engine_is_held_against_its_learner(colocated: Run) -> None:
    assert_hooks(colocated)
    assert_tokens_agree(colocated, STEPS, SAMPLES)
    [engine] = colocated.events("engine_info")
    assert engine["resolved"]["dtype"] == "bfloat16"  # TRL says dtype auto, and the trainer computes in float32
    drawn, trained = rows(colocated, "rollout"), rows(colocated, "experience")
    apart = [
        float(np.abs(np.subtract(row["logprob"], trained[step][sample]["actor_logprob"])).max())
        for step, found in drawn.items()
        for sample, row in found.items()
    ]
    assert 1e-3 < max(apart) < 0.5  # bfloat16's rounding, and nothing else
    assert [event["version"] for event in colocated.events("sync")] == list(range(STEPS))


def test_one_run_whose_engine_rounds_as_nobody_asked_has_that_cause(colocated: Run) -> None:
    verdict = audit(colocated.path)
    assert [(cause.name, cause.party) for cause in verdict.causes] == [("CONFIG(dtype)", "run")], verdict.reason


@pytest.mark.parametrize("temperature", ["1.0", "0.7"])
def test_a_sound_job_is_sound(recordings: Path, temperature: str) -> None:
    name = f"trl-sound-{temperature}"
    run = trl(recordings, name, "--vllm", "--dtype", "bfloat16", "--temperature", temperature)
    assert {event["source"] for event in run.events("weights")} == {"learner", "received"}
    [engine] = run.events("engine_info")
    assert engine["asked"]["max_model_len"] == engine["resolved"]["max_model_len"] == 128
    verdict = audit(recordings / name)
    assert verdict.verdict == "SOUND", verdict.reason
    states = {check.name: check.state for check in verdict.parity.checks} if verdict.parity else {}
    assert states["engine-against-learner"] == "ruled out"
