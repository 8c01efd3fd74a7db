"""verl's coupled plugin: each sample has its own draw, the same in every run; what it cannot draw is refused."""

from __future__ import annotations

import asyncio
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from scenarios.engines.coupling import Draw
from scenarios.jobs import verl as verl_coupled
from scenarios.jobs.verl import DRAW, drawn

ASKED = {"temperature": 0.7, "top_p": 0.9, "top_k": 40, "repetition_penalty": 1.0, "logprobs": True}


def config(engine: str = "vllm") -> Any:
    return SimpleNamespace(actor_rollout_ref=SimpleNamespace(rollout=SimpleNamespace(name=engine)))


def place(step: int, row: int) -> dict[str, Any]:
    return {"step": step, "sample_index": row, "rollout_n": 0, "validate": False}


@pytest.mark.parametrize(("engine", "name"), [("vllm", "extra_args"), ("sglang", "custom_params")])
def test_the_draw_takes_the_sampling_over_and_leaves_the_engine_nothing_to_filter(engine: str, name: str) -> None:
    given = drawn(3, config(engine), {**ASKED, name: {"mine": 1}}, place(2, 5), 1)
    assert (given["temperature"], given["top_k"], given["top_p"], given["logprobs"]) == (1.0, -1, 1.0, True)
    draw = Draw.from_json(given[name][DRAW])
    assert (draw.seed, draw.temperature, draw.top_k, draw.top_p) == (3, 0.7, 40, 0.9)
    assert given[name]["mine"] == 1


def test_no_two_samples_share_a_draw_and_two_runs_do() -> None:
    def number(step: int, row: int, session: int) -> int:
        return int(drawn(0, config(), ASKED, place(step, row), session)["extra_args"][DRAW]["sample"])

    places = [(step, row, session) for step in (1, 2, 900) for row in (0, 1, 70_000) for session in range(4)]
    assert len({number(*one) for one in places}) == len(places)
    assert number(2, 5, 1) == number(2, 5, 1) < 2**63


def test_a_greedy_sample_is_left_alone_and_a_penalty_is_refused() -> None:
    greedy = {**ASKED, "temperature": 0}
    assert drawn(0, config(), greedy, place(1, 0), 0) is greedy
    with pytest.raises(ValueError, match="repetition penalty"):
        drawn(0, config(), {**ASKED, "repetition_penalty": 1.1}, place(1, 0), 0)


def test_verls_loop_tells_each_sample_its_draw_and_validation_none(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, Any]] = []

    class AgentLoopWorker:
        config: Any = None

        async def _run_agent_loop(self, sampling_params: Any, trajectory: Any, *, agent_name: str, **rest: Any) -> None:
            seen.append(sampling_params)

    module = ModuleType(verl_coupled.LOOPS)
    module.AgentLoopWorker = AgentLoopWorker  # type: ignore[attr-defined]
    monkeypatch.setenv(verl_coupled.COUPLED, "4")
    verl_coupled._imported(module)
    worker = AgentLoopWorker()
    worker.config = config()
    for validate in (False, True):
        trajectory = {**place(1, 0), "validate": validate}
        asyncio.run(worker._run_agent_loop(ASKED, trajectory=trajectory, agent_name="single", session_id=2))
    assert seen[0]["extra_args"][DRAW]["seed"] == 4 and seen[0]["extra_args"][DRAW]["sample"] & 0xFFF == 2
    assert seen[1] is ASKED


class Batch:
    """TransferQueue's KVBatchMeta, as far as the plugin asks."""

    def __init__(self, *keys: str) -> None:
        self.keys = list(keys)

    def reorder(self, indexes: list[int]) -> None:
        self.keys = [self.keys[one] for one in indexes]


def driver(*batches: Batch) -> Any:
    """verl's trainer with the plugin in it: it takes prompts from the data, its buffer answers with those batches."""

    class ReplayBuffer:
        def __init__(self) -> None:
            self.batches = list(batches)

        def sample(self, global_steps: int) -> Any:
            return self.batches.pop(0), {}

    class PPOTrainer:
        def __init__(self) -> None:
            self.replay_buffer = ReplayBuffer()

        def _next_train_batch(self, uids: list[str]) -> Any:
            return {"uid": uids}

    for name, cls in ((verl_coupled.TRAINER, PPOTrainer), (verl_coupled.BUFFER, ReplayBuffer)):
        module = ModuleType(name)
        setattr(module, cls.__name__, cls)
        verl_coupled._imported(module)
    return PPOTrainer()


def test_samples_are_trained_on_in_the_order_of_the_data_whatever_was_finished_first() -> None:
    trainer = driver(Batch("b_1_0", "a_10_0", "a_2_0", "b_0_0"), Batch("a_0_0", "c_0_1", "c_0_0"))
    trainer._next_train_batch(["b", "a"])
    first, _ = trainer.replay_buffer.sample(global_steps=1)
    assert first.keys == ["b_0_0", "b_1_0", "a_2_0", "a_10_0"]
    trainer._next_train_batch(["c"])
    second, _ = trainer.replay_buffer.sample(global_steps=2)
    assert second.keys == ["a_0_0", "c_0_0", "c_0_1"]


def test_samples_of_prompts_that_nobody_saw_taken_stay_as_they_came() -> None:
    trainer = driver(Batch("b_1_0", "x_0_0", "b_0_0"))
    trainer._next_train_batch(["b"])
    assert trainer.replay_buffer.sample(global_steps=1)[0].keys == ["b_1_0", "x_0_0", "b_0_0"]
