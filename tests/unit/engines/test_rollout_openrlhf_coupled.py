"""OpenRLHF's plugin: prompts in the order of a seed, a draw for each sample, samples in the order of their prompts."""

from __future__ import annotations

import asyncio
import random
import sys
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from drawing import asked

from probes.draws import DRAW, SEEDED, SEEN
from scenarios.engines.vllm.draws import PROCESSOR
from scenarios.jobs import openrlhf as plugin


class Handle:
    """An engine's Ray handle: the methods have `remote`; what was sent is kept."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.generate_responses = SimpleNamespace(remote=lambda **given: self.sent.append(given))
        self.get_num_unfinished_requests = SimpleNamespace(remote=lambda: 0)


class SamplesGenerator:
    def __init__(self, *engines: Handle) -> None:
        self.vllm_engines: list[Any] = list(engines)

    def _dispatch_prompts_to_vllm(self, prompts: list[str], labels: list[str], **kwargs: Any) -> None:
        params = asked()
        for place, prompt in enumerate(prompts):
            engine = self.vllm_engines[place % len(self.vllm_engines)]
            assert engine.get_num_unfinished_requests.remote() == 0
            engine.generate_responses.remote(prompt=prompt, sampling_params=params, num_samples=2)

    def _process_response_into_experience(self, response: Any, **kwargs: Any) -> Any:
        return SimpleNamespace(response=response)

    def _generate_vllm(self, responses: list[Any]) -> Any:
        return [self._process_response_into_experience(one) for one in responses], len(responses), True


@pytest.fixture
def samples(monkeypatch: pytest.MonkeyPatch) -> type[SamplesGenerator]:
    """The class of the driver with the plugin in it."""
    cls = type("SamplesGenerator", (SamplesGenerator,), dict(vars(SamplesGenerator)))
    module = ModuleType(plugin.SAMPLES)
    module.SamplesGenerator = cls  # type: ignore[attr-defined]
    monkeypatch.setenv(plugin.COUPLED, "4")
    plugin._imported(module)
    return cls


def test_each_prompt_is_sent_with_a_draw_of_its_own_whichever_engine_takes_it(samples: Any) -> None:
    one, two = Handle(), Handle()
    generator = samples(one, two)
    generator._dispatch_prompts_to_vllm(["a", "b", "a"], ["", "", ""])
    generator._dispatch_prompts_to_vllm(["c"], [""])
    assert generator.vllm_engines == [one, two]
    draws = {given["prompt"]: given["sampling_params"].extra_args[DRAW] for given in one.sent[2:] + two.sent}
    everyone = [given["sampling_params"].extra_args[DRAW]["sample"] for given in one.sent + two.sent]
    assert sorted(number >> 12 for number in everyone) == [0, 1, 2, 3]
    assert draws["c"]["sample"] >> 12 == 3 and draws["c"]["seed"] == 4


def test_samples_are_handed_on_in_the_order_of_their_prompts(samples: Any) -> None:
    made, count, _ = samples()._generate_vllm([{DRAW: 8192}, {DRAW: 1}, {DRAW: 4096}, {DRAW: 0}])
    assert [one.response[DRAW] for one in made] == [0, 1, 4096, 8192] and count == 4


def test_samples_without_a_draw_stay_in_the_order_of_their_arrival(samples: Any) -> None:
    made, _, _ = samples()._generate_vllm([{DRAW: 1, "at": 0}, {"at": 1}, {DRAW: 0, "at": 2}])
    assert [one.response["at"] for one in made] == [0, 1, 2]


class Rollout:
    """The engine's actor; its agent asks for `turns` answers a sample."""

    turns = 1
    answers: ClassVar[list[list[int]]] = []  # the prompts that it says it saw, one for each call

    async def __init__(self, **kwargs: Any) -> None:  # type: ignore[misc]
        self.kwargs, self.seen = kwargs, []

    async def generate(self, prompt_token_ids: Any, sampling_params: Any, multi_modal_data: Any = None) -> Any:
        self.seen.append((sampling_params.extra_args or {}).get(DRAW))
        return SimpleNamespace(prompt_token_ids=self.answers.pop(0) if self.answers else None)

    async def generate_responses(self, prompt: str, label: str, sampling_params: Any, num_samples: int = 1) -> Any:
        async def one() -> Any:
            for _ in range(self.turns):
                await self.generate([1], sampling_params)
            return {"prompt": prompt}

        return await asyncio.gather(*(one() for _ in range(num_samples)))


async def engine(turns: int = 1, **kwargs: Any) -> Any:
    cls = type("Rollout", (Rollout,), {**vars(Rollout), "turns": turns})
    module = ModuleType(plugin.ENGINES)
    actor = SimpleNamespace(__ray_metadata__=SimpleNamespace(modified_class=cls))
    module.RolloutRayActor = actor  # type: ignore[attr-defined]
    plugin._imported(module)
    made = cls.__new__(cls)
    await made.__init__(**kwargs)
    return made


def test_the_engine_is_started_with_the_processor_and_tells_the_models_own_probabilities() -> None:
    made = asyncio.run(engine(logprobs_mode="processed_logprobs", seed=42, logits_processors=["mine:Own"]))
    assert made.kwargs == {
        "logprobs_mode": "raw_logprobs", "seed": 42, "async_scheduling": False,
        "logits_processors": ["mine:Own", PROCESSOR],
    }  # fmt: skip
    assert "logprobs_mode" not in asyncio.run(engine()).kwargs


def test_each_sample_of_a_group_has_its_draw_and_says_so() -> None:
    async def work() -> Any:
        actor = await engine()
        told = plugin.drawn(7, 5 << 12, asked(), otherwise="")
        return actor, await actor.generate_responses(prompt="p", label="", sampling_params=told, num_samples=3)

    actor, responses = asyncio.run(work())
    first = 5 << 12
    assert [one[DRAW] for one in responses] == [first, first + 1, first + 2]
    assert [(one["sample"], one["offset"]) for one in actor.seen] == [(first, 0), (first + 1, 0), (first + 2, 0)]


def test_the_prompt_that_the_engine_saw_comes_with_each_sample_that_was_drawn() -> None:
    """Of the first answer of a sample; of later ones an environment wrote parts."""

    async def work() -> Any:
        actor = await engine(turns=2)
        actor.answers = [[1, 2], [3], [1, 4], [5]]
        told = plugin.drawn(7, 5 << 12, asked(), otherwise="")
        return await actor.generate_responses(prompt="p", label="", sampling_params=told, num_samples=2)

    assert sorted(one[SEEN] for one in asyncio.run(work())) in ([[1, 2], [1, 4]], [[1, 2], [3]])


def test_a_sample_without_a_draw_says_nothing() -> None:
    async def work() -> Any:
        actor = await engine()
        return await actor.generate_responses(prompt="p", label="", sampling_params=asked(), num_samples=2)

    assert asyncio.run(work()) == [{"prompt": "p"}] * 2


def test_later_answers_of_a_sample_draw_at_positions_of_their_own() -> None:
    async def work() -> Any:
        actor = await engine(turns=3)
        told = plugin.drawn(7, 0, asked(), otherwise="")
        for _ in range(2):  # the next batch of the job begins anew
            await actor.generate_responses(prompt="p", label="", sampling_params=told, num_samples=1)
        return actor.seen

    assert [one["offset"] for one in asyncio.run(work())] == [0, 1 << 20, 2 << 20] * 2


@pytest.fixture
def strategy(monkeypatch: pytest.MonkeyPatch) -> Any:
    """OpenRLHF's strategy with the plugin in it; its loader remembers three numbers of three generators."""
    transformers = ModuleType("transformers")

    def set_seed(seed: int) -> None:
        random.seed(seed)
        torch.manual_seed(seed)

    transformers.set_seed = set_seed  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "transformers", transformers)
    monkeypatch.setenv(plugin.SEED, "11")

    class DeepspeedStrategy:
        def setup_dataloader(self, data: Any) -> Any:
            return SimpleNamespace(order=torch.randperm(1000).tolist(), other=random.random(), data=data)

    module = ModuleType(plugin.LOADERS)
    module.DeepspeedStrategy = DeepspeedStrategy  # type: ignore[attr-defined]
    plugin._imported(module)
    return DeepspeedStrategy()


def test_the_driver_shuffles_with_the_seed_and_says_so(strategy: Any) -> None:
    torch.manual_seed(1)
    one = strategy.setup_dataloader("data")
    torch.manual_seed(2)
    two = strategy.setup_dataloader("data")
    assert (one.order, one.other) == (two.order, two.other) and one.data == "data"
    assert getattr(one, SEEDED) == 11


def test_a_training_actor_keeps_its_own_seed(strategy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    torch.manual_seed(1)
    one = strategy.setup_dataloader("data")
    torch.manual_seed(2)
    two = strategy.setup_dataloader("data")
    assert one.order != two.order and not hasattr(one, SEEDED)
