"""The trainer over roles and an embedded engine in this process: what a step computes, trains on and records."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from ppo_support import Stack, random_models, scenario, stack, with_

from probes import format as recording
from scenarios.engines.canonical_request import ParameterRefused
from scenarios.engines.engine_interface import Completion, EngineError
from scenarios.planted.differences.fault import Fault
from scenarios.ppo import selfcheck
from scenarios.ppo.hooks import Hooks
from scenarios.ppo.trainer import mini_batches
from scenarios.remote import call
from scenarios.session import RolloutResult

pytestmark = pytest.mark.slow  # it imports Transformers, which takes 2 s

STEPS = 2


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return random_models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def running(paths: dict[str, str]) -> Iterator[Stack]:
    with stack(scenario(), paths) as made:
        yield made


def record(running: Stack, run_dir: Path, **kwargs: Any) -> tuple[recording.Run, list[dict[str, float]]]:
    trainer = running.trainer(run_dir, **kwargs)
    trainer.start()
    metrics = [trainer.step(step) for step in range(STEPS)]
    trainer.finish()
    call(running.session, "end_recording")
    recording.write_manifest(run_dir, {"scenario": running.scenario.to_json()})
    return recording.Run(run_dir), metrics


@pytest.fixture(scope="module")
def run(running: Stack, tmp_path_factory: pytest.TempPathFactory) -> tuple[recording.Run, list[dict[str, float]]]:
    return record(running, tmp_path_factory.mktemp("run"))


def test_metrics_are_plain_floats_of_every_part(run: tuple[recording.Run, list[dict[str, float]]]) -> None:
    _, metrics = run
    wanted = {
        "reward_mean", "kl_mean", "policy_loss", "value_loss", "entropy", "clip_fraction", "grad_norm", "length_mean",
        "length_max", "truncated_fraction", "stopped_fraction", "tokens", "seconds", "update_logprob_shift",
        "seconds_rollout", "seconds_experience", "seconds_train", "seconds_sync",
    }  # fmt: skip
    assert wanted <= metrics[0].keys()
    assert all(type(value) is float for value in metrics[0].values())
    assert metrics[0]["kl_mean"] == 0.0
    assert metrics[1]["kl_mean"] != 0.0


def test_the_recording_is_complete_and_has_every_event(run: tuple[recording.Run, list[dict[str, float]]]) -> None:
    recorded, _ = run
    assert recorded.complete
    kinds = {event["kind"] for event in recorded.events()}
    assert kinds >= {
        "open", "span", "shapes", "boundaries", "weights", "sync", "group", "step", "learner", "data", "probe_cost",
        "engine_info", "engine_stats", "call", "close",
    }  # fmt: skip
    spans = {event["name"] for event in recorded.events(kind="span")}
    assert spans >= {
        "rollout", "experience", "actor_forward", "reference_forward", "critic_forward", "reward_forward", "advantages",
        "train", "actor_train", "critic_train", "sync", "sync_send", "proof", "checkpoint",
    }  # fmt: skip
    assert [event["version"] for event in recorded.events(kind="sync")] == [0, 1, 2]
    boundaries = list(recorded.events(kind="boundaries"))
    assert len(boundaries) == 8 * STEPS
    assert boundaries[0]["text_first"].startswith("<|bos|>")


def test_the_experience_frame_follows_from_its_own_numbers(run: tuple[recording.Run, list[dict[str, float]]]) -> None:
    recorded, metrics = run
    frames = list(recorded.frames(kind="experience"))
    assert [frame.step for frame in frames] == [0, 1]
    arrays = frames[1].arrays
    rows = {name: arrays[name].rows() for name in arrays}
    np.testing.assert_allclose(
        np.concatenate(rows["kl"]),
        np.concatenate(rows["actor_logprob"]) - np.concatenate(rows["reference_logprob"]),
        atol=1e-6,
    )
    assert np.mean(rows["reward"]) == pytest.approx(metrics[1]["reward_mean"], abs=1e-6)
    assert np.concatenate(rows["advantage"]).mean() == pytest.approx(0, abs=1e-5)
    assert np.concatenate(rows["advantage"]).std(ddof=1) == pytest.approx(1, abs=1e-4)
    # Coupled sampling with the learner's own weights: the learner would have drawn every token itself.
    assert np.concatenate(rows["margin"]).min() > 0


def test_the_learner_agrees_with_the_engine(run: tuple[recording.Run, list[dict[str, float]]]) -> None:
    recorded, _ = run
    for drawn, made in zip(recorded.frames(kind="rollout"), recorded.frames(kind="experience"), strict=True):
        assert drawn.arrays["sample"].tolist() == made.arrays["sample"].tolist()
        assert drawn.arrays["output"].rows() == made.arrays["tokens"].rows()
        engine, learner = drawn.arrays["logprob"].values, made.arrays["actor_logprob"].values
        np.testing.assert_allclose(np.array(engine), np.array(learner), atol=5e-5)


def test_a_second_run_in_the_same_processes_is_bit_identical(
    running: Stack, run: tuple[recording.Run, list[dict[str, float]]], tmp_path: Path
) -> None:
    again, _ = record(running, tmp_path)
    assert learners(again) == learners(run[0])


def test_an_omitted_tensor_trips_the_next_step(running: Stack, tmp_path: Path) -> None:
    fault = Fault(trainer={"omit_tensors": {1: ("lm_head.weight",)}})
    faulty, _ = record(running, tmp_path, plants=fault.plants().trainer)
    syncs = {event["version"]: event for event in faulty.events(kind="sync")}
    assert syncs[1]["absent"] == ["lm_head.weight"]
    assert syncs[1]["proof_max_delta"] > 1e-3
    assert syncs[0]["proof_max_delta"] < 1e-5
    drawn, made = list(faulty.frames(kind="rollout"))[1], list(faulty.frames(kind="experience"))[1]
    assert np.abs(np.array(drawn.arrays["logprob"].values) - np.array(made.arrays["actor_logprob"].values)).max() > 1e-3


def test_a_guided_run_goes_on_with_the_guide_s_tokens(
    running: Stack, run: tuple[recording.Run, list[dict[str, float]]], tmp_path: Path
) -> None:
    trainer = running.trainer(tmp_path)
    trainer.start()
    for frame in run[0].frames(kind="rollout"):
        rows = zip(frame.arrays["sample"].tolist(), frame.arrays["output"].rows(), frame.fields["finish"], strict=True)
        guide = {number: (tuple(ids), finish) for number, ids, finish in rows}
        if frame.step == 1:
            guide[8] = (tuple(reversed(guide[8][0])), guide[8][1])
        trainer.step(frame.step, guide=guide)
    trainer.finish()
    call(running.session, "end_recording")
    recording.write_manifest(tmp_path, {})
    guided = recording.Run(tmp_path)
    assert learners(guided)[0] == learners(run[0])[0]
    assert learners(guided)[1] != learners(run[0])[1]
    frames = list(guided.frames(kind="experience"))
    assert tuple(frames[1].arrays["tokens"].rows()[0]) == guide[8][0]


def test_rollout_only_needs_the_actor_alone_and_trains_nothing(paths: dict[str, str], tmp_path: Path) -> None:
    fixed = dataclasses.replace(scenario(), train=False)
    with stack(fixed, paths, ("actor",)) as running:
        recorded, metrics = record(running, tmp_path)
    assert [event["version"] for event in recorded.events(kind="sync")] == [0]
    assert not list(recorded.events(kind="learner"))
    assert "reward_mean" not in metrics[0] and metrics[0]["tokens"] > 0
    assert not (tmp_path / "checkpoints").exists()
    frame = next(recorded.frames(kind="experience"))
    assert np.isnan(np.array(frame.arrays["reward"].values)).all()
    assert np.isfinite(np.array(frame.arrays["actor_logprob"].values)).all()


def test_a_context_too_short_is_refused_before_anything_starts(paths: dict[str, str], tmp_path: Path) -> None:
    short = with_(scenario(), engine={"max_model_len": 48})
    with stack(short, paths, ("actor",)) as running, pytest.raises(ParameterRefused, match="max_model_len"):
        running.trainer(tmp_path)


@pytest.mark.parametrize(("ids", "finish", "message"), [((), "stop", "sample 0 of step 0"), ((5,), "abort", "'abort'")])
def test_a_sample_that_the_engine_gave_up_is_an_error(
    running: Stack, tmp_path: Path, ids: tuple[int, ...], finish: str, message: str
) -> None:
    trainer = running.trainer(tmp_path)

    class Failing:
        def submit(self, method: str, requests: Any, **kwargs: Any) -> Any:
            from concurrent.futures import Future

            future: Future[RolloutResult] = Future()
            used = [(request.sample, ids, finish) for request in requests]
            future.set_result(RolloutResult([Completion(number, (), ids, (), finish) for number, _, _ in used], used))
            return future

    trainer._session = Failing()  # type: ignore[assignment]
    with pytest.raises(EngineError, match=message):
        trainer.step(0)


def test_the_built_in_scenario_asks_of_itself_what_would_hide_faults(
    run: tuple[recording.Run, list[dict[str, float]]],
) -> None:
    checks = {check.name: check for check in selfcheck.report(run[0])}
    assert len(checks) == 6
    manifest = {"scenario": {"model": {"dtype": "bfloat16"}}}
    half = SimpleNamespace(frames=run[0].frames, events=run[0].events, manifest=manifest)
    moves = [check for check in selfcheck.report(half, floor=0.05) if "move of an update" in check.name]
    assert [check.applies for check in moves] == [False]  # 100 roundings are more than any update
    assert checks["smallest proof of weights that did not arrive"].ok
    assert checks["smallest log-probability move of an update"].ok
    assert not checks["tokens served from the prefix cache"].applies
    # A random model of this test rarely ends a sentence: the check must be able to say so.
    assert not checks["samples that end by themselves"].ok
    assert checks["samples cut at the limit"].ok


def test_mini_batches_are_a_shuffle_of_every_epoch() -> None:
    plan = list(mini_batches(8, 2, 3, seed=0, step=1))
    assert [len(part) for part in plan] == [3, 3, 2, 3, 3, 2]
    assert sorted(chain(*plan[:3])) == sorted(chain(*plan[3:])) == list(range(8))
    assert plan[:3] != plan[3:]
    assert plan == list(mini_batches(8, 2, 3, seed=0, step=1))
    assert plan != list(mini_batches(8, 2, 3, seed=0, step=2))


def test_split_gives_consecutive_shares() -> None:
    split = Hooks().split
    assert split(range(7), 3) == [[0, 1], [2, 3], [4, 5, 6]]
    assert split([1], 2) == [[], [1]]
    assert split([1, 2], 0) == []


def learners(run: recording.Run) -> list[tuple[str, str, str]]:
    return [(event["actor"], event["critic"], event["batch"]) for event in run.events(kind="learner")]


def test_the_catalogue_holds_a_whole_run_and_generation_alone() -> None:
    from harness import config

    assert (config.load("ppo-tiny").steps, config.load("ppo-tiny").train) == (8, True)
    assert config.load("rollout-tiny").train is False
