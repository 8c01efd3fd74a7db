"""Requests through a router: what it would drop arrives at the engine, and every answer is told."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import threading
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from probes.draws import DRAW
from scenarios.engines.engine_interface import EngineError, Request
from scenarios.engines.sglang import routed

PARAMS = {"temperature": 0.0, "max_new_tokens": 3, "custom_params": {DRAW: {"seed": 2**62, "top_p": 0.5}}}


class Manager:
    status = "up"

    def __init__(self) -> None:
        self.asked: list[Any] = []

    async def generate_request(self, asked: Any, request: Any) -> AsyncIterator[str]:
        self.asked.append(asked)
        yield "an answer"


def arrived(body: dict[str, Any]) -> tuple[Any, list[tuple[int, int]]]:
    """What the engine is asked after the router has passed on the fields that sglang-router 0.3.2 knows, and what is
    told of it."""
    params = {name: value for name, value in body["sampling_params"].items() if name != "custom_params"}
    asked = SimpleNamespace(
        sampling_params=params, custom_labels=body.get("custom_labels"), return_prompt_token_ids=False
    )
    manager, told = Manager(), list[tuple[int, int]]()
    served = routed._Restoring(manager, lambda sample, offset: told.append((sample, offset)))
    assert served.status == "up"
    answer = asyncio.run(anext(served.generate_request(asked)))  # type: ignore[arg-type]
    assert answer == "an answer"
    return manager.asked[0], told


def test_the_draw_and_the_prompt_that_was_seen_survive_the_router() -> None:
    body = routed.body(Request(7, (1, 2, 3), offset=1), PARAMS, input_ids=(1, 2, 3), text=None, extra_key="")
    assert body["input_ids"] == (1, 2, 3) and not {"text", "extra_key"} & set(body)
    assert all(isinstance(value, str) for value in body["custom_labels"].values())
    asked, told = arrived(json.loads(json.dumps(body)))
    assert asked.sampling_params == PARAMS and asked.return_prompt_token_ids and asked.custom_labels is None
    assert told == [(7, 1)]


def test_a_request_of_somebody_else_is_left_as_it_is() -> None:
    """The router's own look at an engine as it starts."""
    asked, told = arrived({"sampling_params": {"max_new_tokens": 1}})
    assert asked.sampling_params == {"max_new_tokens": 1} and not asked.return_prompt_token_ids and not told


def test_parameters_of_a_request_are_not_changed() -> None:
    params = dict(PARAMS)
    routed.body(Request(0, (1,)), params)
    assert params == PARAMS


def test_an_event_loop_that_runs_elsewhere_is_used_as_one_that_does_not() -> None:
    async def tokens() -> AsyncIterator[int]:
        yield 5

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        assert routed._Running(loop).run_until_complete(tokens().__anext__()) == 5
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


ENGINES = ["http://127.0.0.1:1", "http://127.0.0.1:2"]


def test_a_router_that_is_not_installed_is_said_with_the_command_that_installs_it() -> None:
    with pytest.raises(EngineError, match=r"engine\.router = random: .* not installed .*harness env create sglang"):
        routed.Router(ENGINES, "random")


@pytest.mark.slow
def test_a_router_that_does_not_start_is_said_with_its_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(routed, "PROGRAM", "raise SystemExit(7)")
    with pytest.raises(EngineError, match=r"code 7"):
        routed.Router(ENGINES, "random")
