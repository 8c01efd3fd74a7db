"""TRL's plugin: the engine that TRL makes gets the processor, and each of its prompts a draw of its own."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from drawing import asked

from probes.draws import COUPLED, DRAW, DRAWN, SEEN
from scenarios.engines.vllm.draws import PROCESSOR
from scenarios.jobs import trl as plugin


class LLM:
    def __init__(self, **options: Any) -> None:
        self.options, self.calls = options, []

    def generate(self, prompts: list[Any], sampling_params: Any = None, *, use_tqdm: bool = True) -> list[Any]:
        self.calls.append((prompts, sampling_params, use_tqdm))
        return [SimpleNamespace(prompt_token_ids=one["prompt_token_ids"]) for one in prompts]


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setenv(COUPLED, "7")
    found = ModuleType(plugin.ENGINES)
    found.LLM = LLM  # type: ignore[attr-defined]
    plugin._imported(found)
    return found


def prompts(*rows: list[int]) -> list[dict[str, list[int]]]:
    return [{"prompt_token_ids": row} for row in rows]


def draws(engine: LLM, call: int) -> list[dict[str, Any]]:
    return [one.extra_args[DRAW] for one in engine.calls[call][1]]


def test_the_engine_is_started_with_the_processor_and_each_prompt_brings_a_draw(module: ModuleType) -> None:
    engine = module.LLM(model="m", seed=0, logprobs_mode="processed_logprobs")
    assert isinstance(engine, LLM) and engine.options["logits_processors"] == [PROCESSOR]
    assert engine.options["logprobs_mode"] == "raw_logprobs" and engine.options["async_scheduling"] is False
    answers = engine.generate(prompts([1, 2], [3]), sampling_params=asked(logprobs=0), use_tqdm=False)
    assert [one.prompt_token_ids for one in answers] == getattr(engine, SEEN) == [[1, 2], [3]]
    engine.generate(prompts([4]), asked(logprobs=0))
    assert [(one["seed"], one["sample"]) for one in draws(engine, 0)] == [(7, 0), (7, 1)]
    assert [one["sample"] for one in draws(engine, 1)] == [2] and engine.calls[0][2] is False
    assert getattr(engine, DRAWN) is True


def test_engines_of_other_ranks_draw_other_samples_and_a_tensor_parallel_group_the_same(module: ModuleType) -> None:
    one, two, three = (module.LLM(seed=number) for number in (0, 1, 1))
    for engine in (one, two, three):
        engine.generate(prompts([1], [2]), asked())
    assert draws(two, 0) == draws(three, 0)
    assert not {one["sample"] for one in draws(one, 0)} & {one["sample"] for one in draws(two, 0)}


def test_a_greedy_batch_is_left_alone_and_not_called_coupled(module: ModuleType) -> None:
    engine = module.LLM()
    engine.generate(prompts([1]), asked())
    engine.generate(prompts([1]), asked(temperature=0))
    assert engine.calls[1][1][0].extra_args is None and getattr(engine, DRAWN) is False


def test_several_samples_of_one_request_are_refused(module: ModuleType) -> None:
    with pytest.raises(ValueError, match="n=1"):
        module.LLM().generate(prompts([1]), asked(n=4))


def test_without_vllm_nothing_is_done() -> None:
    empty = ModuleType(plugin.ENGINES)
    plugin._imported(empty)
    assert not hasattr(empty, "LLM")
