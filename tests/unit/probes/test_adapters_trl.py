"""The readers of TRL's table: what its engine received, how it was asked to generate, which sample a loss is about."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from probes import install, weights
from probes.adapters import trl
from probes.adapters.calls import Call, Job
from probes.adapters.table import Hook
from probes.format import Run


def method(self: Any) -> None: ...


class Process:
    """One process of a TRL job that reads the calls of the adapter's hooks."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.job = folder, Job(trl.ADAPTER, digests=True)
        self.recorder = install.start(folder, role="trainer", groups=False)

    def read(self, reader: Any, owner: Any) -> None:
        reader(Call(Hook("module:function"), method, (owner,), {}, self.recorder, self.job))

    def recording(self) -> Run:
        self.recorder.close()
        (self.folder / "run.json").write_text('{"format_version": 1}')
        return Run(self.folder)


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    made = Process(tmp_path)
    yield made
    if made.recorder in install.live():
        made.recorder.close()


class Model:
    """The model of a colocated engine, which takes tensors one by one."""

    def __init__(self) -> None:
        self.loaded: dict[str, Any] = {}

    def load_weights(self, tensors: Iterable[tuple[str, Any]]) -> None:
        self.loaded.update(tensors)


def generation(learner: torch.nn.Module, model: Model | None) -> Any:
    """TRL's `VLLMGeneration` with an engine in its own process; with a server where there is no model."""
    worker = SimpleNamespace(model_runner=SimpleNamespace(model=model))
    llm = SimpleNamespace(llm_engine=SimpleNamespace(model_executor=SimpleNamespace(driver_worker=worker)))
    return SimpleNamespace(model=learner, llm=None if model is None else llm)


def sync(process: Process, owner: Any, tensors: dict[str, Any], version: int) -> None:
    process.job.step = version
    process.read(trl.syncing, owner)
    for pair in tensors.items():
        owner.llm.llm_engine.model_executor.driver_worker.model_runner.model.load_weights([pair])
    process.read(trl.synced, owner)


def test_what_a_colocated_engine_received_has_digests(process: Process) -> None:
    learner, model = torch.nn.Linear(2, 1), Model()
    owner, tensors = generation(learner, model), dict(learner.named_parameters())
    for version in (0, 1):
        sync(process, owner, tensors, version)
        process.read(trl.drew, owner)
    process.read(trl.drew, owner)  # a second batch with these weights
    run = process.recording()
    assert [(event["version"], event["source"]) for event in run.events("weights")] == [
        (0, "received"),
        (1, "received"),
    ]
    assert all(event["digests"] == weights.digests(tensors) for event in run.events("weights"))
    assert all(event["absent"] == event["unreported"] == [] for event in run.events("sync"))
    assert model.loaded.keys() == tensors.keys()


def test_what_an_engine_loads_after_its_sync_is_what_it_draws_with(process: Process) -> None:
    learner, model = torch.nn.Linear(2, 1), Model()
    owner, tensors = generation(learner, model), dict(learner.named_parameters())
    sync(process, owner, tensors, 1)
    older = {name: tensor + 1 for name, tensor in tensors.items()}
    model.load_weights(list(older.items()))
    process.read(trl.drew, owner)
    [event] = process.recording().events("weights")
    assert event["digests"] == weights.digests(older)


def test_a_tensor_that_was_not_sent_is_absent(process: Process) -> None:
    learner = torch.nn.Linear(2, 1)
    sync(process, generation(learner, Model()), {"weight": learner.weight}, 1)
    [event] = process.recording().events("sync")
    assert (event["absent"], event["unreported"]) == (["bias"], [])


def test_a_server_reports_nothing_that_it_received(process: Process) -> None:
    sync(process, generation(torch.nn.Linear(2, 1), None), {}, 2)
    [event] = process.recording().events("sync")
    assert (event["absent"], event["unreported"]) == ([], ["weight", "bias"])


def test_without_digests_no_loader_is_wrapped(process: Process) -> None:
    process.job.digests, model = False, Model()
    sync(process, generation(torch.nn.Linear(2, 1), model), {}, 1)
    assert "load_weights" not in vars(model)


def trainer(**settings: Any) -> Any:
    """A trainer with TRL's defaults that generates with vLLM, or with Transformers where `use_vllm` is off."""
    defaults = {
        "use_vllm": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": None, "repetition_penalty": 1.0,
        "max_completion_length": 16,
    }  # fmt: skip
    generation_kwargs = settings.pop("generation_kwargs", None)
    return SimpleNamespace(**{**defaults, **settings}, args=SimpleNamespace(generation_kwargs=generation_kwargs))


def test_arguments_of_generation_override_the_settings_of_the_same_name() -> None:
    sampling = trl._sampling(trainer(generation_kwargs={"top_p": 0.9, "max_tokens": 8, "seed": 3}))
    assert sampling == {
        "temperature": 1.0, "top_k": -1, "top_p": 0.9, "min_p": 0.0, "repetition_penalty": 1.0, "max_tokens": 8,
    }  # fmt: skip


def test_what_transformers_resolved_is_recorded_and_what_nobody_set_is_missing() -> None:
    config = SimpleNamespace(
        temperature=0.7, top_k=50, top_p=1.0, min_p=None, repetition_penalty=None, max_new_tokens=16
    )
    sampling = trl._sampling(trainer(use_vllm=False, generation_config=config))
    assert sampling == {"temperature": 0.7, "top_k": 50, "top_p": 1.0, "max_tokens": 16}


@pytest.mark.parametrize(
    ("settings", "changed"),
    [({}, False), ({"min_p": 0.0}, False), ({"top_p": 0.9}, True), ({"generation_kwargs": {"logit_bias": {}}}, True)],
)
def test_which_sampling_changes_the_log_probabilities(settings: dict[str, Any], changed: bool) -> None:
    assert trl._tempered(trainer(**settings)) is changed


def test_an_engine_is_recorded_with_what_it_was_started_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trl, "vllm_resolved", lambda config: {"dtype": "float32"})
    owner = SimpleNamespace(
        model=SimpleNamespace(dtype="torch.float32"), vllm_generation=generation(torch.nn.Linear(2, 1), Model())
    )
    owner.vllm_generation.llm.llm_engine.vllm_config = None
    engine = trl._engine(owner, "vllm", {"dtype": "float32", "max_model_len": 128, "max_num_seqs": None})
    assert engine["asked"]["dtype"] == "float32" and engine["resolved"] == {"dtype": "float32"}
    assert engine["canonical"] == {"dtype": "float32", "max_model_len": 128}
    assert trl._engine(owner, "vllm", {})["canonical"] == {}  # the hook of the engine never fired
