"""Weight sync between a real sender and an embedded engine: proof, planted omission, and failure of either side."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ppo_support import Stack, random_models, scenario, stack

from probes import install
from scenarios.engines.engine_interface import WeightMeta
from scenarios.ppo.weight_sync import PROOF_RESPONSE, SyncFailed, WeightSync, proof_sequences, size
from scenarios.prompts import PromptSet
from scenarios.remote import call

pytestmark = pytest.mark.slow  # it imports Transformers, which takes 2 s

PROMPTS = PromptSet([(1, 30 + k, 40, 50) for k in range(6)], scenario())


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return random_models(tmp_path_factory.mktemp("models"))


@pytest.fixture
def running(paths: dict[str, str]) -> Iterator[Stack]:
    with stack(scenario(), paths, ("actor",)) as made:
        yield made


def connected(running: Stack, recorder: install.Recorder) -> WeightSync:
    sync = WeightSync(running.roles["actor"][0], running.session, PROMPTS, seed=0)
    sync.connect(world_size=2, backend="gloo")
    return sync


def events(recorder: install.Recorder, kind: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in recorder.path.read_text().splitlines()]
    return [line for line in lines if line["kind"] == kind]


def train(running: Stack) -> None:
    from scenarios.ppo.batches import Sample
    from scenarios.ppo.role import MiniBatch

    actor = running.roles["actor"][0]
    samples = [Sample(0, (1, 30), (40, 50))]
    row = [call(actor, "score", 0, samples).logprob[0]]
    call(actor, "train", 0, [MiniBatch(samples, row, row, 2)])


def test_every_tensor_arrives_and_the_proof_agrees(running: Stack, tmp_path: Path) -> None:
    with install.start(tmp_path, role="trainer") as recorder:
        sync = connected(running, recorder)
        sync(recorder, step=-1, version=0)
        train(running)
        moved = sync(recorder, step=0, version=1)
        first, second = events(recorder, "sync")
        assert moved.shift is not None and moved.shift > 1e-4
        assert second["ok"] and second["version"] == 1
        assert second["mismatched"] == second["absent"] == second["unreported"] == []
        assert second["tensors"] == len(call(running.roles["actor"][0], "weight_meta"))
        assert second["bytes"] > 0
        assert second["loaded"] == second["tensors"] and second["misloaded"] == []
        assert second["proof_max_delta"] < 1e-5
        assert "proof_stale" not in first and second["proof_stale"] > 100 * second["proof_mean_delta"]
        assert "proof_behind" not in first and second["proof_behind"] > 100 * second["proof_mean_delta"]
        sync(recorder, step=1, version=2)  # without an update in between a proof has nothing to find
        assert events(recorder, "sync")[2]["proof_stale"] < 1e-5
        assert first["proof_tokens"] == 4 * (4 + PROOF_RESPONSE - 1)
        assert len(events(recorder, "weights")) == 3
        assert [event["name"].startswith("weight-sync-") for event in events(recorder, "group")] == [True]


def test_the_learner_names_the_tensors_that_a_full_sync_sends(running: Stack, tmp_path: Path) -> None:
    actor = running.roles["actor"][0]
    call(actor, "record_to", str(tmp_path))
    try:
        with install.start(tmp_path, role="trainer") as recorder:
            connected(running, recorder)(recorder, step=-1, version=0, omit=("lm_head.weight",))
            [sent] = events(recorder, "weights")
    finally:
        call(actor, "end_recording")
    [journal] = (tmp_path / "events").glob("actor-*")
    [named] = [line for line in map(json.loads, journal.read_text().splitlines()) if line["kind"] == "model"]
    assert named["tensors"] == list(sent["digests"]) and "lm_head.weight" in named["tensors"]


def test_an_omitted_tensor_is_named_and_shows_in_the_proof(running: Stack, tmp_path: Path) -> None:
    with install.start(tmp_path, role="trainer") as recorder:
        sync = connected(running, recorder)
        sync(recorder, step=-1, version=0)
        train(running)
        sync(recorder, step=0, version=1, omit=("lm_head.weight",))
        event = events(recorder, "sync")[-1]
        assert event["absent"] == ["lm_head.weight"]
        assert event["mismatched"] == []
        assert event["proof_max_delta"] > 1e-4


def test_an_engine_that_refuses_stops_the_sender_at_once(running: Stack, tmp_path: Path) -> None:
    class Refusing:
        """The session, but for a sync that it refuses without receiving anything."""

        def submit(self, method: str, *args: Any, **kwargs: Any) -> Any:
            if method != "sync":
                return running.session.submit(method, *args, **kwargs)
            return _failed(RuntimeError("must begin first\nmore"))

        def stop(self) -> None: ...

    actor = running.roles["actor"][0]
    with install.start(tmp_path, role="trainer") as recorder:
        sync = connected(running, recorder)
        sync._link._session = Refusing()
        with pytest.raises(SyncFailed, match="RuntimeError"):
            sync(recorder, step=0, version=1)
        assert call(actor, "policy_path")  # the actor is free again
        event = events(recorder, "sync")[-1]
        assert event["ok"] is False and "must begin first" in event["message"]


def _failed(error: Exception) -> Any:
    from concurrent.futures import Future

    future: Future[Any] = Future()
    future.set_exception(error)
    return future


def test_a_tensor_that_changed_on_its_way_is_named(running: Stack, tmp_path: Path) -> None:
    class Garbling:
        """The session, but for one digest of what it received."""

        def submit(self, method: str, *args: Any, **kwargs: Any) -> Any:
            future = running.session.submit(method, *args, **kwargs)
            if method == "sync":
                report = future.result()
                received = report.received | {"lm_head.weight": "0" * 32}
                future = type(future)()
                future.set_result(dataclasses.replace(report, received=received))
            return future

        def stop(self) -> None: ...

    with install.start(tmp_path, role="trainer") as recorder:
        sync = connected(running, recorder)
        sync._link._session = Garbling()
        sync(recorder, step=-1, version=0)
        assert events(recorder, "sync")[-1]["mismatched"] == ["lm_head.weight"]


def test_proof_sequences_are_the_same_in_every_run() -> None:
    assert proof_sequences(PROMPTS, 0) == proof_sequences(PROMPTS, 0)
    assert proof_sequences(PROMPTS, 0) != proof_sequences(PROMPTS, 1)


def test_size_of_a_tensor_in_bytes() -> None:
    assert size(WeightMeta("w", (3, 4), "bfloat16")) == 24
    assert size(WeightMeta("w", (), "float32")) == 4
