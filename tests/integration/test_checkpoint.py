"""Four steps are two, a checkpoint, and two more in fresh processes' state: bit for bit; and damage is refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from ppo_support import Stack, random_models, scenario, stack, with_
from transformers import AutoModelForCausalLM, AutoTokenizer

from probes import format as recording
from scenarios.ppo import checkpoint
from scenarios.ppo.checkpoint import CheckpointError
from scenarios.remote import call
from scenarios.settings import Model, Scenario

STEPS = 4


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return random_models(tmp_path_factory.mktemp("models"))


def learners(running: Stack, run_dir: Path, steps: range, resume: Path | None = None, **order: bool) -> list[Any]:
    """Digests of the learner after each step; the checkpoint is `run_dir / checkpoints / step-N`."""
    trainer = running.trainer(run_dir)
    if resume is not None and not order.get("after_start"):
        trainer.resume(resume)
    trainer.start()
    if resume is not None and order.get("after_start"):
        trainer.resume(resume)
    for step in steps:
        trainer.step(step)
    trainer.finish()
    call(running.session, "end_recording")
    recording.write_manifest(run_dir, {})
    run = recording.Run(run_dir)
    assert run.complete
    assert all(event["ok"] and not event["mismatched"] for event in run.events(kind="sync"))
    assert all(event["proof_max_delta"] < 1e-4 for event in run.events(kind="sync"))
    return [(e["step"], e["actor"], e["critic"], e["batch"]) for e in run.events(kind="learner")]


@pytest.mark.by_day(1)
@pytest.mark.parametrize("after_start", [False, True])
def test_a_resumed_run_continues_bit_for_bit(paths: dict[str, str], tmp_path: Path, after_start: bool) -> None:
    settings = scenario(checkpoint_every=2, epochs=2)
    with stack(settings, paths) as running:
        whole = learners(running, tmp_path / "whole", range(STEPS))
    assert [path.name for path in sorted((tmp_path / "whole/checkpoints").iterdir())] == ["step-2", "step-4"]
    with stack(settings, paths) as running:
        saved = tmp_path / "whole/checkpoints/step-2"
        rest = learners(running, tmp_path / "rest", range(2, STEPS), resume=saved, after_start=after_start)
    assert rest == whole[2:]
    ends = [checkpoint.load(tmp_path / name / "checkpoints/step-4", settings.to_json()) for name in ("whole", "rest")]
    assert ends[0].state.keys() == {"actor", "critic"}
    assert (ends[0].policy / "model.safetensors").read_bytes() == (ends[1].policy / "model.safetensors").read_bytes()


def test_half_precision_resumes_with_its_master_weights(paths: dict[str, str], tmp_path: Path) -> None:
    settings = dataclasses.replace(scenario(actor_lr=1e-4, checkpoint_every=1), model=Model(dtype="bfloat16"))
    settings = with_(settings, rollout={"mode": "coupled"})
    ends = []
    with stack(settings, paths) as running:
        for name, steps, resume in (("whole", range(2), None), ("rest", range(1, 2), "whole/checkpoints/step-1")):
            trainer = running.trainer(tmp_path / name)
            if resume:
                trainer.resume(tmp_path / resume)
            trainer.start()
            for step in steps:
                trainer.step(step)
            trainer.finish()
            call(running.session, "end_recording")
            ends.append([meta.digest for meta in call(running.roles["actor"][0], "weight_meta")])
    assert ends[0] == ends[1]


@pytest.fixture(scope="module")
def saved(paths: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Scenario]:
    run_dir = tmp_path_factory.mktemp("run")
    with stack(scenario(), paths) as running:
        learners(running, run_dir, range(1))
    return run_dir / "checkpoints/step-1", scenario()


def copied(saved: Path, tmp_path: Path) -> Path:
    import shutil

    return Path(shutil.copytree(saved, tmp_path / "copy"))


def test_the_policy_is_a_hugging_face_directory(saved: tuple[Path, Scenario]) -> None:
    policy = saved[0] / "policy"
    model = AutoModelForCausalLM.from_pretrained(policy)
    assert model.generation_config.eos_token_id == 2
    assert AutoTokenizer.from_pretrained(policy).chat_template


def test_nothing_half_written_stays_beside_a_checkpoint(saved: tuple[Path, Scenario]) -> None:
    assert [path.name for path in saved[0].parent.iterdir()] == ["step-1"]
    state = torch.load(saved[0] / "learner.pt", weights_only=True)
    assert state.keys() == {"actor", "critic"}


@pytest.mark.parametrize("file", ["learner.pt", "policy/model.safetensors", "policy/tokenizer.json"])
def test_a_changed_file_is_refused_by_name(saved: tuple[Path, Scenario], tmp_path: Path, file: str) -> None:
    path = copied(saved[0], tmp_path)
    content = bytearray((path / file).read_bytes())
    content[len(content) // 2] ^= 1
    (path / file).write_bytes(content)
    with pytest.raises(CheckpointError, match=f"{file}: has changed since the checkpoint was written"):
        checkpoint.load(path, saved[1].to_json())


def test_a_missing_file_and_a_missing_manifest_are_refused(saved: tuple[Path, Scenario], tmp_path: Path) -> None:
    path = copied(saved[0], tmp_path)
    (path / "learner.pt").unlink()
    with pytest.raises(CheckpointError, match=r"learner\.pt: is missing"):
        checkpoint.load(path, saved[1].to_json())
    (path / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match=r"manifest\.json: cannot be read"):
        checkpoint.load(path, saved[1].to_json())


def test_another_scenario_is_refused_and_its_keys_named(saved: tuple[Path, Scenario]) -> None:
    other = with_(saved[1], ppo={"clip": 0.1}, sampling={"max_tokens": 9})
    with pytest.raises(CheckpointError, match=r"ppo\.clip, sampling\.max_tokens differ; to start a new run"):
        checkpoint.load(saved[0], other.to_json())
    longer = dataclasses.replace(saved[1], steps=100)
    assert checkpoint.load(saved[0], longer.to_json()).step == 1
