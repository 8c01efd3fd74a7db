"""verl's coupled plugin: each sample has its own draw, the same in every run; what it cannot draw is refused."""

from __future__ import annotations

import asyncio
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from scenarios.rollout import verl_coupled
from scenarios.rollout.coupling import Draw
from scenarios.rollout.verl_coupled import KEY, drawn

ASKED = {"temperature": 0.7, "top_p": 0.9, "top_k": 40, "repetition_penalty": 1.0, "logprobs": True}


def config(engine: str = "vllm") -> Any:
    return SimpleNamespace(actor_rollout_ref=SimpleNamespace(rollout=SimpleNamespace(name=engine)))


def place(step: int, row: int) -> dict[str, Any]:
    return {"step": step, "sample_index": row, "rollout_n": 0, "validate": False}


@pytest.mark.parametrize(("engine", "name"), [("vllm", "extra_args"), ("sglang", "custom_params")])
def test_the_draw_takes_the_sampling_over_and_leaves_the_engine_nothing_to_filter(engine: str, name: str) -> None:
    given = drawn(3, config(engine), {**ASKED, name: {"mine": 1}}, place(2, 5), 1)
    assert (given["temperature"], given["top_k"], given["top_p"], given["logprobs"]) == (1.0, -1, 1.0, True)
    draw = Draw.from_json(given[name][KEY])
    assert (draw.seed, draw.temperature, draw.top_k, draw.top_p) == (3, 0.7, 40, 0.9)
    assert given[name]["mine"] == 1


def test_no_two_samples_share_a_draw_and_two_runs_do() -> None:
    def number(step: int, row: int, session: int) -> int:
        return int(drawn(0, config(), ASKED, place(step, row), session)["extra_args"][KEY]["sample"])

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
    monkeypatch.setenv(verl_coupled.SEED, "4")
    verl_coupled._imported(module)
    worker = AgentLoopWorker()
    worker.config = config()
    for validate in (False, True):
        trajectory = {**place(1, 0), "validate": validate}
        asyncio.run(worker._run_agent_loop(ASKED, trajectory=trajectory, agent_name="single", session_id=2))
    assert seen[0]["extra_args"][KEY]["seed"] == 4 and seen[0]["extra_args"][KEY]["sample"] & 0xFFF == 2
    assert seen[1] is ASKED
