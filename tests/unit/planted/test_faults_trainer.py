"""Each plant of the trainer changes what it says it changes, and nothing else: on a whole stack in this process."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ppo_support import random_models, scenario, stack

from harness.parity.subjects.ranks.observed import Ranks
from harness.parity.subjects.ranks.observed_faults import What, rank_faults
from harness.recordings.store import Recording
from probes.format import Run, write_manifest
from scenarios.planted.differences.fault import Fault
from scenarios.planted.differences.trainer import TrainerPlants, altered

pytestmark = pytest.mark.slow

TENSOR = "model.layers.0.mlp.down_proj.weight"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """record(plants) -> the recording of two steps of one stack."""
    home = tmp_path_factory.mktemp("stack")
    with stack(scenario(), random_models(home)) as running:

        def record(name: str, **plants: Any) -> Run:
            write_manifest(home / name, {"scenario": running.scenario.to_json()})
            trainer = running.trainer(home / name, plants=Fault(trainer=plants).plants().trainer)
            trainer.start()
            for step in range(2):
                trainer.step(step)
            trainer.close()
            running.session.submit("end_recording").result()
            return Run(home / name)

        yield record


@pytest.fixture(scope="module")
def sound(recorded: Any) -> Run:
    run: Run = recorded("sound")
    return run


def experience(run: Run, step: int, array: str) -> np.ndarray:
    frame = next(frame for frame in run.frames(kind="experience") if frame.step == step)
    return np.array(getattr(frame.arrays[array], "values", frame.arrays[array]))


def syncs(run: Run) -> dict[int, dict[str, Any]]:
    return {event["version"]: event for event in run.events(kind="sync")}


def test_returns_lack_the_rewards_of_samples_that_end_so(recorded: Any, sound: Run) -> None:
    wrong = recorded("unrewarded", unrewarded="length")
    np.testing.assert_array_equal(experience(wrong, 0, "reward"), experience(sound, 0, "reward"))
    frame = next(frame for frame in sound.frames(kind="experience") if frame.step == 0)
    rollout = next(frame for frame in sound.frames(kind="rollout") if frame.step == 0)
    cut = np.array(rollout.fields["finish"]) == "length"
    rows = frame.arrays["return"]
    differs = experience(wrong, 0, "return") != experience(sound, 0, "return")
    changed = [bool(differs[start:end].any()) for start, end in zip(rows.offsets, rows.offsets[1:], strict=False)]
    assert cut.any() and changed == cut.tolist()


def test_rewards_stand_with_other_samples_and_the_run_s_own_records_show_it(recorded: Any, sound: Run) -> None:
    wrong = recorded("exchanged", exchanged="reward")
    np.testing.assert_array_equal(experience(wrong, 0, "reward"), experience(sound, 0, "reward")[::-1])
    [fault] = rank_faults(Ranks(Recording(wrong.path)))
    assert (fault.what, fault.role, fault.steps) == (What.EXCHANGED, "reward", (0, 1))
    assert rank_faults(Ranks(Recording(sound.path))) == ()


def test_log_probabilities_are_scaled_from_a_step_on(recorded: Any, sound: Run) -> None:
    wrong = recorded("scaled", scale=2.0, first_step=1)
    np.testing.assert_array_equal(experience(wrong, 0, "actor_logprob"), experience(sound, 0, "actor_logprob"))
    np.testing.assert_array_equal(
        experience(wrong, 1, "actor_logprob"), 2 * experience(sound, 1, "actor_logprob").astype(np.float32)
    )
    for array in ("tokens", "reference_logprob", "margin"):
        np.testing.assert_array_equal(experience(wrong, 1, array), experience(sound, 1, array))


def test_the_mask_is_off_by_one_within_each_sample(recorded: Any, sound: Run) -> None:
    wrong = recorded("shifted", shift=1)
    frames = [next(iter(run.frames(kind="experience"))).arrays["actor_logprob"].rows() for run in (wrong, sound)]
    assert all(list(a) == [*b[-1:], *b[:-1]] for a, b in zip(*frames, strict=True))


def test_tensors_are_left_out_once_or_from_a_version_on(recorded: Any) -> None:
    once = syncs(recorded("once", omit_tensors={1: (TENSOR,)}))
    assert {version: event["absent"] for version, event in once.items()} == {0: [], 1: [TENSOR], 2: []}
    later = syncs(recorded("later", omit_from=1, omit_names=(TENSOR,)))
    assert {version: event["absent"] for version, event in later.items()} == {0: [], 1: [TENSOR], 2: [TENSOR]}


def test_a_tensor_arrives_as_another_one_from_a_version_on(recorded: Any) -> None:
    found = syncs(recorded("altered", alter={TENSOR: "revision"}, alter_from=1))
    assert {version: event["mismatched"] for version, event in found.items()} == {0: [], 1: [TENSOR], 2: [TENSOR]}
    assert found[0]["proof_max_delta"] < 1e-5 < 1e-4 < found[1]["proof_max_delta"]


def test_an_engine_is_woken_without_a_sync(tmp_path: Path) -> None:
    asleep = dataclasses.replace(scenario(), engine=dataclasses.replace(scenario().engine, sleep_level=1))
    with stack(asleep, random_models(tmp_path)) as running:
        write_manifest(tmp_path / "run", {"scenario": running.scenario.to_json()})
        plants = Fault(trainer={"wakes": {1: ("weights", "cache")}}).plants().trainer
        trainer = running.trainer(tmp_path / "run", plants=plants)
        trainer.start()
        metrics = [trainer.step(step) for step in range(2)]
        trainer.close()
        running.session.submit("end_recording").result()
    run = Run(tmp_path / "run")
    assert list(syncs(run)) == [0, 2] and ["proof_max_delta" in one for one in metrics] == [False, True]
    calls = [(one["name"], one["step"]) for one in run.events(kind="call") if one["name"] in ("wake", "sync")]
    assert calls == [("sync", -1), ("wake", 0), ("wake", 0), ("wake", 1), ("sync", 1), ("wake", 1)]
    assert [frame.fields["weight_version"] for frame in run.frames(kind="rollout")] == [0, 1]


def test_an_engine_that_is_sent_what_the_sync_before_had_to_send_is_one_update_behind(recorded: Any) -> None:
    found = syncs(recorded("behind", behind_from=0))
    assert found[0]["proof_max_delta"] < 1e-5
    for version in (1, 2):
        assert found[version]["proof_behind"] < 1e-5 < 1e-4 < found[version]["proof_mean_delta"]


def test_halves_of_rows_change_places_and_every_norm_stays() -> None:
    tensor = torch.arange(12.0).reshape(4, 3)
    swapped = altered(tensor, "halves")
    assert swapped.tolist() == tensor[[2, 3, 0, 1]].tolist() and swapped.norm() == tensor.norm()
    revision = altered(tensor, "revision")
    assert revision.shape == tensor.shape and 0 < (revision - tensor).abs().max() < tensor.abs().max()
    assert torch.equal(revision, altered(tensor, "revision"))


@pytest.mark.parametrize(("parts", "first", "sizes"), [(2, 0.0, [4, 4]), (2, 0.75, [6, 2]), (3, 0.5, [4, 2, 2])])
def test_shares_of_the_ranks(parts: int, first: float, sizes: list[int]) -> None:
    shares = TrainerPlants(first_share=first).split(range(8), parts)
    assert [len(share) for share in shares] == sizes
    assert [one for share in shares for one in share] == list(range(8))


def test_the_default_is_a_sound_trainer() -> None:
    plants = TrainerPlants()
    rows = [np.arange(3, dtype=np.float32)]
    assert plants.omitted(3) == () and plants.change(3) is None and plants.logprobs(rows, [], 3) is rows
