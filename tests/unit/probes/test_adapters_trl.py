"""The readers of TRL's table: what its engine received, how it was asked to generate, which sample a loss is about."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from probes import install, weights
from probes.adapters import trl
from probes.adapters.calls import Call, Job
from probes.adapters.merged_weights import merged_weights
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


def test_a_sync_that_raised_is_a_failed_one(process: Process) -> None:
    process.job.step = 2

    def failed(call: Call) -> None:
        call.error = "ConnectionError: refused"
        trl.not_synced(call)

    process.read(failed, generation(torch.nn.Linear(2, 1), None))
    [event] = process.recording().events("sync")
    assert (event["ok"], event["version"], event["message"]) == (False, 2, "ConnectionError: refused")


class LoraLinear(torch.nn.Module):
    """PEFT's LoRA on a dense layer, as far as it is merged: names and arithmetic of `peft.tuners.lora.layer`."""

    def __init__(self, base: torch.nn.Linear, *, variant: str = "", bias: bool = False) -> None:
        super().__init__()
        self.base_layer = base
        self.lora_A = torch.nn.ModuleDict({"default": torch.nn.Linear(base.in_features, 2, bias=False)})
        self.lora_B = torch.nn.ModuleDict({"default": torch.nn.Linear(2, base.out_features, bias=bias)})
        self.scaling, self.lora_bias = {"default": 2.0}, {"default": bias}
        self.lora_variant = {"default": variant} if variant else {}
        self.merged_adapters: list[str] = []
        self.active_adapters = ["default"]

    def get_delta_weight(self, adapter: str) -> Any:
        return self.lora_B[adapter].weight @ self.lora_A[adapter].weight * self.scaling[adapter]

    def merge(self) -> None:
        self.base_layer.weight.data += self.get_delta_weight("default")
        if self.lora_bias["default"]:
            self.base_layer.bias.data += self.lora_B["default"].bias * self.scaling["default"]
        self.merged_adapters.append("default")


class Adapted(torch.nn.Module):
    """A `PeftModel`: the user's model two levels down, and the prefix of what belongs to its adapters."""

    prefix, peft_config = "lora_", {"default": None}

    def __init__(self, **kinds: Any) -> None:
        super().__init__()
        self.base_model = torch.nn.Module()
        self.base_model.model = torch.nn.Module()
        self.base_model.model.proj = LoraLinear(torch.nn.Linear(3, 3), **kinds)
        self.base_model.model.norm = torch.nn.LayerNorm(3)


def sent(model: Adapted) -> dict[str, Any]:
    """What TRL's `_iter_named_params` sends: after the merge, by vLLM's names."""
    made = copy.deepcopy(model)
    made.base_model.model.proj.merge()
    named = {
        name.removeprefix("base_model.model.").replace(".base_layer", ""): p for name, p in made.named_parameters()
    }
    return {name: parameter.data for name, parameter in named.items() if "lora_" not in name}


@pytest.mark.slow
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_adapter_is_digested_as_it_is_merged_for_a_sync(process: Process, dtype: torch.dtype, bias: bool) -> None:
    learner, model = Adapted(bias=bias), Model()
    learner.to(dtype)
    process.job.memory["whole"] = True
    for version in (0, 1):  # a second sync of one version merges into a base that the first has rounded
        sync(process, generation(learner, model), sent(learner), version)
        process.read(trl.drew, generation(learner, model))
        with torch.no_grad():
            learner.base_model.model.proj.lora_B["default"].weight += 0.1
    run = process.recording()
    found = {(event["source"], event["version"]): event["digests"] for event in run.events("weights")}
    for version in (0, 1):
        assert found["learner", version] == found["received", version]
    assert found["learner", 0]["proj.weight"] != found["learner", 1]["proj.weight"]
    assert found["learner", 0]["norm.weight"] == found["learner", 1]["norm.weight"]
    assert all(event["absent"] == event["unreported"] == [] for event in run.events("sync"))


def test_an_adapter_that_was_applied_twice_arrives_with_another_digest(process: Process) -> None:
    learner, model = Adapted(), Model()
    process.job.memory["whole"] = True
    tensors = sent(learner)
    base = learner.base_model.model.proj.base_layer.weight.data
    tensors["proj.weight"] = 2 * tensors["proj.weight"] - base
    sync(process, generation(learner, model), tensors, 1)
    process.read(trl.drew, generation(learner, model))
    found = {event["source"]: event["digests"] for event in process.recording().events("weights")}
    assert {name for name in found["learner"] if found["learner"][name] != found["received"][name]} == {"proj.weight"}


def test_a_merge_that_is_not_known_here_leaves_the_weight_out(process: Process) -> None:
    assert {name for name, _ in merged_weights(Adapted(variant="dora"))} == {"norm.weight", "norm.bias"}


def trainer(**settings: Any) -> Any:
    """A trainer with TRL's defaults that generates with vLLM, or with Transformers where `use_vllm` is off."""
    defaults = {
        "use_vllm": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": None, "repetition_penalty": 1.0,
        "max_completion_length": 16,
    }  # fmt: skip
    args = SimpleNamespace(generation_kwargs=settings.pop("generation_kwargs", None))
    engine = SimpleNamespace(mode=settings.pop("mode", "colocate"))
    return SimpleNamespace(**{**defaults, **settings}, args=args, vllm_generation=engine)


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
    assert trl._changed(trainer(**settings)) is changed


@pytest.mark.parametrize(
    ("settings", "tempered"),
    [
        ({"temperature": 0.7}, True), ({}, False), ({"temperature": 0.7, "top_p": 0.9}, False),
        ({"temperature": 0.7, "generation_kwargs": {"seed": 1}}, False),
        ({"temperature": 0.7, "mode": "server"}, False),
    ],
)  # fmt: skip
def test_when_the_learner_scores_what_the_engine_reports(settings: dict[str, Any], tempered: bool) -> None:
    assert trl._comparable(trainer(**settings)) is tempered


@pytest.mark.parametrize(
    ("settings", "divides"),
    [
        ({"vllm_importance_sampling_correction": True}, True), ({"vllm_importance_sampling_correction": False}, False),
        ({}, False), ({"vllm_importance_sampling_correction": True, "mode": "server"}, False),
    ],
)  # fmt: skip
def test_when_the_importance_ratio_divides_by_what_the_engine_reports(settings: dict[str, Any], divides: bool) -> None:
    assert trl._in_ratio(trainer(**settings)) is divides


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
