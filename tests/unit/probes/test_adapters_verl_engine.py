"""verl's engines from within: the prompts that their schedulers saw, the weights that reached their loaders."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from probes import install, weights
from probes.adapters import verl, verl_driver, verl_engine, verl_rollout, verl_training
from probes.adapters.calls import Call, Job
from probes.adapters.table import Hook
from probes.adapters.verl_engine import request_key
from probes.format import Ragged, Run


class Process:
    """Calls readers one after the other in one engine's process."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.job = folder, Job(verl.ADAPTER, digests=True)
        self.recorder = install.start(folder, role="engine", groups=False)

    def one(self, original: Callable[..., Any], *args: Any, result: Any = None, **kwargs: Any) -> Call:
        call = Call(Hook("module:function"), original, args, kwargs, self.recorder, self.job)
        call.result = result
        return call

    def read(self) -> Run:
        self.recorder.close()
        (self.folder / "run.json").write_text('{"format_version": 2}')
        return Run(self.folder)


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    made = Process(tmp_path)
    yield made
    if made.recorder in install.live():
        made.recorder.close()


def add_request(self: Any, request: Any, request_wave: int = 0) -> None: ...
def queue(self: Any, req: Any, is_retracted: bool = False) -> None: ...
def receive(self: Any) -> None: ...
def bucket(self: Any, weights: Any, peft_config: Any, base_sync_done: bool) -> None: ...
def from_tensor(self: Any, named_tensors: Any, load_format: str | None = None) -> None: ...
def from_disk(self: Any, model_path: str, load_format: str) -> None: ...
def handle(self: Any, recv_req: Any) -> None: ...


def seen(process: Process) -> list[tuple[int, list[int]]]:
    found = []
    for frame in process.read().frames("seen"):
        prompts = frame.arrays["prompt_seen"]
        assert frame.step == -1 and isinstance(prompts, Ragged)
        found += list(zip(frame.arrays["request"].values.tolist(), prompts.rows(), strict=True))
    return found


def test_vllms_request_is_recorded_under_the_id_that_verl_gave_it(process: Process) -> None:
    name = "0123456789abcdef0123456789abcdef"
    for given, ids in ((f"{name}-89abcdef", [1, 2, 3]), (name[::-1], [4]), ("of-embeddings", None)):
        request = SimpleNamespace(request_id=given, prompt_token_ids=ids)
        verl_engine.vllm_saw(process.one(add_request, None, request))
    assert seen(process) == [(request_key(name), [1, 2, 3]), (request_key(name[::-1]), [4])]


def test_sglangs_request_is_recorded_as_it_is_queued_and_once(process: Process) -> None:
    request = SimpleNamespace(rid="a", origin_input_ids=array("q", [5, 6]))
    verl_engine.sglang_saw(process.one(queue, None, request))
    verl_engine.sglang_saw(process.one(queue, None, request, is_retracted=True))
    assert seen(process) == [(request_key("a"), [5, 6])]


def test_each_answer_has_the_request_that_was_named_while_it_was_made(process: Process) -> None:
    """Two samples at once, and one whose answer went on after an interruption: its first request is the sample's."""

    async def generate(self: Any, request_id: str, *, prompt_ids: Any, sampling_params: Any) -> None: ...
    def name(self: Any, request_id: str) -> None: ...

    rollout = SimpleNamespace(temperature=1.0)
    client = SimpleNamespace(config=SimpleNamespace(actor_rollout_ref=SimpleNamespace(rollout=rollout)))

    async def answer(prompt: list[int], made: str, output: list[int], reason: str = "") -> None:
        call = process.one(generate, client, "sticky", prompt_ids=prompt, sampling_params={})
        verl_rollout.generating(call)
        await asyncio.sleep(0)
        verl_rollout.named(process.one(name, None, "sticky", result=made))
        await asyncio.sleep(0)
        call.result = SimpleNamespace(token_ids=output, log_probs=None, stop_reason=reason, extra_fields={})
        verl_rollout.generated(call)

    async def sample(letter: str) -> dict[str, Any]:
        current: dict[str, Any] = {"turns": []}
        verl_rollout._trajectory.set(current)
        await answer([1], f"{letter}-first", [2], "aborted")
        await answer([1, 2], f"{letter}-second", [3])
        return current

    async def both() -> list[dict[str, Any]]:
        return await asyncio.gather(*(asyncio.create_task(sample(letter)) for letter in "xy"))

    for letter, current in zip("xy", asyncio.run(both()), strict=True):
        [turn] = current["turns"]
        assert turn["output"] == [2, 3] and turn["request"] == request_key(f"{letter}-first")
    verl_rollout._requests.set(None)
    verl_rollout.named(process.one(name, None, "of nobody", result="r"))  # a client that somebody else uses


def received(process: Process) -> dict[int, dict[str, str]]:
    found: dict[int, dict[str, str]] = {}
    for event in process.read().events("weights"):
        assert event["source"] == "received" and event["step"] == event["version"] - 1
        found.setdefault(event["version"], {}).update(event["digests"])
    return found


TENSORS = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(2, dtype=torch.bfloat16)}
SENT = weights.digests(TENSORS)


def test_vllms_buckets_of_one_sync_are_one_version(process: Process) -> None:
    for _ in range(2):
        verl_engine.syncing(process.one(receive, None))
        for name, tensor in TENSORS.items():
            verl_engine.arrived(process.one(bucket, None, [(name, tensor)], None, False))
    assert received(process) == {0: SENT, 1: SENT}


def test_an_iterator_is_the_jobs_to_consume(process: Process) -> None:
    passed = iter(TENSORS.items())
    verl_engine.arrived(process.one(bucket, None, passed, None, False))
    assert [name for name, _ in passed] == ["a", "b"]
    assert received(process) == {}


class Model(torch.nn.Module):
    """A model that takes tensors, one by one or counted."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: list[str] = []

    def load_weights(self, tensors: Any) -> None:
        self.taken += [name for name, _ in tensors]


def load(process: Process, model: Model, tensors: Any, *, good: bool = True, form: str | None = None) -> None:
    result = (good, "" if good else "no room")
    call = process.one(from_tensor, SimpleNamespace(get_model=lambda: model), [], form, result=result)
    verl_engine.loading(call)
    model.load_weights(tensors)
    verl_engine.loaded(call)


def test_sglangs_tensors_are_digested_as_its_model_takes_them(process: Process) -> None:
    model = Model()
    load(process, model, iter(TENSORS.items()))  # from a disk
    verl_engine.flushed(process.one(handle, None, None))
    for pair in TENSORS.items():  # in buckets
        load(process, model, [pair])
    verl_engine.flushed(process.one(handle, None, None))
    verl_engine.flushed(process.one(handle, None, None))  # before it sleeps: nothing has arrived
    assert model.taken == ["a", "b"] * 2 and "load_weights" not in vars(model)
    assert received(process) == {0: SENT, 1: SENT}


def test_sglangs_tensor_that_changed_on_its_way_has_another_digest(process: Process) -> None:
    load(process, Model(), [("a", TENSORS["a"] + 1), ("b", TENSORS["b"])])
    verl_engine.flushed(process.one(handle, None, None))
    found = received(process)[0]
    assert found["a"] != SENT["a"] and found["b"] == SENT["b"]


def test_what_sglang_refuses_or_takes_past_its_loader_did_not_arrive(process: Process) -> None:
    model = Model()
    load(process, model, list(TENSORS.items()), good=False)
    load(process, model, list(TENSORS.items()), form="direct")
    verl_engine.flushed(process.one(handle, None, None))
    assert received(process) == {}
    [sync] = Run(process.folder).events("sync")
    assert (sync["ok"], sync["version"], sync["message"]) == (False, 0, "no room")


def test_a_sync_that_raised_is_a_failed_one(process: Process) -> None:
    def update(self: Any, global_steps: int | None = None) -> None: ...

    for version in (2, None):
        call = process.one(update, None, **({} if version is None else {"global_steps": version}))
        verl_driver.syncing(call)
        call.error = "RayTaskError: out of memory"
        verl_driver.not_synced(call)
    [sync] = process.read().events("sync")
    assert (sync["ok"], sync["version"], sync["message"]) == (False, 2, "RayTaskError: out of memory")


def test_a_load_that_raised_leaves_no_hand_behind_and_a_models_own_loader_stays(process: Process) -> None:
    model = Model()
    own = model.load_weights = lambda tensors: list(tensors)  # type: ignore[method-assign,assignment]
    call = process.one(from_disk, SimpleNamespace(get_model=lambda: model), "/m", "auto", result=(True, ""))
    verl_engine.loading(call)
    assert model.load_weights is not own  # the call raises: nobody is told of its end
    load(process, model, iter(TENSORS.items()))
    verl_engine.flushed(process.one(handle, None, None))
    assert model.load_weights is own
    assert received(process) == {0: SENT}


def test_a_tensor_that_cannot_be_digested_turns_the_hook_off_and_not_the_job(process: Process) -> None:
    model = Model()
    with pytest.raises(RuntimeError, match="a bytes-like object"):
        load(process, model, iter([("a", object())]))
    assert model.taken == ["a"] and "load_weights" not in vars(model)
    verl_engine.flushed(process.one(handle, None, None))
    assert received(process) == {}


def test_a_container_of_another_kind_reaches_the_loader_as_it_is(process: Process) -> None:
    given, taken = dict(TENSORS), []
    model = SimpleNamespace(load_weights=taken.append)
    load(process, model, given)  # type: ignore[arg-type]
    assert taken[0] is given


def test_what_is_no_pair_is_the_loaders_to_refuse(process: Process) -> None:
    taken: list[Any] = []
    model = SimpleNamespace(load_weights=taken.extend)
    with pytest.raises(RuntimeError, match="TypeError"):
        load(process, model, iter([None]))  # type: ignore[arg-type]
    assert taken == [None]


def test_a_hand_of_a_recording_that_went_off_lets_everything_pass(process: Process, monkeypatch: Any) -> None:
    model = Model()
    call = process.one(from_tensor, SimpleNamespace(get_model=lambda: model), [], None, result=(True, ""))
    verl_engine.loading(call)
    process.job.memory.clear()
    monkeypatch.setattr(weights, "digest", lambda tensor: pytest.fail("nobody wants this digest"))
    model.load_weights(list(TENSORS.items()))
    model.load_weights(iter(TENSORS.items()))
    assert model.taken == ["a", "b"] * 2 and process.job.memory == {}


def test_nothing_is_digested_that_was_not_asked_for(process: Process) -> None:
    process.job.digests = False
    load(process, Model(), list(TENSORS.items()))
    verl_engine.arrived(process.one(bucket, None, list(TENSORS.items()), None, False))
    verl_engine.flushed(process.one(handle, None, None))
    assert received(process) == {}


def test_a_request_whose_name_all_others_have_is_nobodys(process: Process) -> None:
    """With rollout.full_determinism every request is called det-0."""

    def name(self: Any, request_id: str) -> None: ...

    verl_rollout.generating(process.one(name, None, "x"))
    verl_rollout.named(process.one(name, None, "x", result="det-0"))
    assert verl_rollout._requests.get() == [-1]
    verl_rollout._requests.set(None)


@pytest.mark.slow
@pytest.mark.parametrize("first", [0, 7])
def test_a_resumed_runs_engines_count_from_its_checkpoint(process: Process, first: int) -> None:
    trainer = install.start(process.folder, role="trainer", groups=False)
    owner = SimpleNamespace(
        global_steps=first, config=SimpleNamespace(trainer=SimpleNamespace(default_local_dir="/checkpoints"))
    )
    call = Call(Hook("module:function"), receive, (owner,), {}, trainer, Job(verl.ADAPTER, digests=True))
    verl_driver.resuming(call)
    for _ in range(2):
        verl_engine.syncing(process.one(receive, None))
        verl_engine.arrived(process.one(bucket, None, [("w", torch.ones(2))], None, True))
    trainer.close()
    run = process.read()
    assert [event["version"] for event in run.events("weights")] == [first, first + 1]
    assert [event["step"] for event in run.events("resume")] == ([first] if first else [])


def test_weights_that_are_sent_once_more_are_no_version(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    """verl's validation beside a reward model sends them without a step."""

    def update(self: Any, global_steps: int | None = None) -> None: ...

    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 1)
    model = torch.nn.Linear(2, 1)
    owner = SimpleNamespace(actor=SimpleNamespace(engine=SimpleNamespace(module=model)))
    for version in (1, None, 2):
        given = {} if version is None else {"global_steps": version}
        for before, after in ((verl_driver.syncing, verl_driver.synced), (verl_training.receiving, verl_training.sent)):
            call = process.one(update, owner, **given)
            before(call)
            after(call)
    run = process.read()
    assert [event["version"] for event in run.events("sync")] == [1, 2]
    assert [event["version"] for event in run.events("weights")] == [1, 2]
    assert "without a version" in next(run.events("note"))["text"]


@pytest.mark.parametrize(("kind", "forward_only", "name"), [
    ("language_model", False, "actor_forward"), ("language_model", True, "reference_forward"),
    ("value_model", False, "critic_forward"),
])  # fmt: skip
def test_whose_forward_pass_it_is(process: Process, kind: str, forward_only: bool, name: str) -> None:
    def infer(self: Any, data: Any) -> None: ...

    owner = SimpleNamespace(
        config=SimpleNamespace(model_type=kind), engine_config=SimpleNamespace(forward_only=forward_only)
    )
    call = process.one(infer, owner, {"input_ids": torch.ones(2, 3, dtype=torch.long)})
    verl_training.inferring(call)
    assert call.name == name
    assert [event["phase"] for event in process.read().events("shapes")] == [name]


@pytest.mark.slow
@pytest.mark.parametrize(("actor", "told"), [
    ("vllm_server_0_0", 1), ("vllm_server_reward_0_0", 0), ("vllm_server_teacher_a_0_0", 0),
])  # fmt: skip
def test_a_reward_models_server_is_not_the_engine_that_draws(
    process: Process, monkeypatch: pytest.MonkeyPatch, actor: str, told: int
) -> None:
    monkeypatch.setattr(verl_rollout, "_actor_name", lambda: actor)
    owner = SimpleNamespace(config=SimpleNamespace(), replica_rank=0)
    verl_rollout._engine(process.one(receive, owner), "vllm", {"dtype": "bfloat16"})
    assert len(list(process.read().events("engine_info"))) == told
