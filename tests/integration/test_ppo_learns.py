"""PPO learns on the built-in task, and the built-in scenario could fail: on the pretrained model, with real samples."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from ppo_support import Stack, stack

from harness import config
from probes import format as recording
from scenarios import models, prompts
from scenarios.models import grammar
from scenarios.ppo import selfcheck
from scenarios.ppo.batches import Sample
from scenarios.remote import call

pytestmark = pytest.mark.night  # by day `make parity` trains on both engines, and the unit tests hold each part


@pytest.fixture(scope="module")
def running(built_in: dict[str, str]) -> Iterator[Stack]:
    with stack(config.load("ppo-tiny"), built_in) as made:
        yield made


@pytest.fixture(scope="module")
def run(running: Stack, tmp_path_factory: pytest.TempPathFactory) -> recording.Run:
    run_dir = tmp_path_factory.mktemp("run")
    trainer = running.trainer(run_dir)
    trainer.start()
    for step in range(running.scenario.steps):
        trainer.step(step)
    trainer.finish()
    call(running.session, "end_recording")
    recording.write_manifest(run_dir, {"scenario": running.scenario.to_json()})
    return recording.Run(run_dir)


def test_the_reward_rises(run: recording.Run) -> None:
    rewards = [event["metrics"]["reward_mean"] for event in run.events(kind="step")]
    assert len(rewards) == 8
    # The mean of 64 rewards in [-1, 1] has a standard error of about 0.08; PPO gained 0.4 to 0.8 with three seeds.
    assert np.mean(rewards[-2:]) - np.mean(rewards[:2]) > 0.25


def test_the_scenario_could_have_failed(run: recording.Run) -> None:
    checks = selfcheck.report(run)
    assert [check.name for check in checks if check.applies and not check.ok] == []


def test_every_token_is_the_one_that_the_learner_would_have_drawn(run: recording.Run) -> None:
    for frame in run.frames(kind="experience"):
        assert np.array(frame.arrays["margin"].values).min() > 0


def test_the_reward_model_follows_the_rule(running: Stack, built_in: dict[str, str]) -> None:
    tokenizer = models.load_tokenizer(built_in["policy"])
    prompt = prompts.load(running.scenario, tokenizer).ids[0]
    texts = [
        "The mill is warm. It has a bright room.", "The mill is grim. It has a dark room.",
        "The mill is warm. It has a dark room.", "Its door is calm and fresh.", "Its door is ugly and cold.",
    ]  # fmt: skip
    samples = [
        Sample(number, prompt, (*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id))
        for number, text in enumerate(texts)
    ]
    rewards = call(running.roles["reward"][0], "rewards", 0, samples)
    rule = [grammar.score(text) for text in texts]
    assert rule == [1, -1, 0, 1, -1]
    assert np.corrcoef(rewards, rule)[0, 1] > 0.9


def test_the_saved_policy_draws_in_an_engine_as_the_learner_does(run: recording.Run, running: Stack) -> None:
    policy = run.path / "checkpoints" / "step-8" / "policy"
    call(running.session, "become_pure", str(policy))
    sequences = [(1, 30, 40, 50, 60), (1, 99, 98)]
    engine = call(running.session, "rescore", sequences)
    learner = call(running.roles["actor"][0], "teacher_forced", sequences)
    for one, other in zip(engine, learner, strict=True):
        assert one == pytest.approx(other, abs=1e-4)


def test_the_builders_make_the_same_bytes_in_another_process(built_in: dict[str, str], tmp_path: Path) -> None:
    import subprocess
    import sys

    code = "import sys, pathlib; from scenarios import models; print(models.build(0, pathlib.Path(sys.argv[1])))"
    made = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, capture_output=True, text=True)
    other, own = Path(made.stdout.strip()), Path(built_in["policy"])
    assert other.name == own.name
    assert {f.name: f.read_bytes() for f in other.iterdir()} == {f.name: f.read_bytes() for f in own.iterdir()}
