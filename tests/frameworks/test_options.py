"""What `harness doctor` asks the installed frameworks' own parsers, in their environments."""

from __future__ import annotations

from pathlib import Path

import pytest
from framework_jobs import interpreter

from harness.doctor.outcome import Fine, Outcome, Problem
from harness.frameworks.argv import taken_apart
from harness.frameworks.detection import detect
from harness.frameworks.spec import Examined


def examined(command: list[str]) -> Examined:
    job = detect(command)
    assert job.installed is not None and job.installed.version
    return job.framework.examine(taken_apart(command, job.framework.starts, job.installed.environ), job.installed)


def kinds(outcomes: tuple[Outcome, ...]) -> list[type]:
    return [type(one) for one in outcomes]


def test_the_options_of_trl_grpo_are_those_of_its_own_parser() -> None:
    command = [str(Path(interpreter("trl")).with_name("trl")), "grpo", "--beta", "1", "--num_processes", "2"]
    assert kinds(examined(command).options) == [Fine]
    assert kinds(examined([*command, "--max_prompt_length", "512"]).options) == [Problem]
    assert kinds(examined([*command, "--bf16"]).options) == [Problem]  # `bool | None`: a value has to stand there


def test_the_options_of_openrlhf_are_those_of_its_own_parser() -> None:
    command = [interpreter("openrlhf"), "-m", "openrlhf.cli.train_ppo_ray", "--vllm.num_engines", "1"]
    found = examined(command)
    assert kinds(found.options) == [Fine] and len(found.settings.values) > 100
    assert kinds(examined([*command, "--pretrain", "x"]).options) == [Problem]


OWN = """
hydra: {searchpath: ["pkg://verl.trainer.config"]}
defaults: [ppo_trainer, _self_]
actor_rollout_ref: {rollout: {name: sglang, n: 4, dtype: null}}
custom: {reward: 2}
"""


def test_a_hydra_file_and_its_overrides_are_composed(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(OWN)
    start = [interpreter("vllm"), "-m", "verl.trainer.main_ppo", "--config-path", str(tmp_path), "--config-name=mine"]
    found = examined([*start, "custom.reward=3", "+custom.more=3", "~data.train_batch_size"])
    assert kinds(found.options) == [Fine]
    assert found.settings.get("actor_rollout_ref.rollout.name") == "sglang" and found.settings.get("custom.more") == 3
    refused = examined([*start, "custom.rewards=3", "+custom.reward=3", "data.train_files"]).options
    assert kinds(refused) == [Problem, Problem, Problem]


@pytest.mark.parametrize("engine", ["megatron", "veomni", "torchtitan"])
def test_another_engine_of_the_learner_is_composed(engine: str) -> None:
    start = [interpreter("vllm"), "-m", "verl.trainer.main_ppo", f"model_engine={engine}"]
    assert kinds(examined([*start, f"actor_rollout_ref.actor.{engine}.param_offload=True"]).options) == [Fine]
