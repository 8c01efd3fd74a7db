"""How a request brings its draw, and what a coupled draw cannot do."""

from __future__ import annotations

from typing import Any

import pytest
from drawing import asked

from probes.draws import DRAW
from scenarios.engines.coupling import Draw
from scenarios.engines.vllm.draws import PROCESSOR, coupled_engine, drawn


def test_the_draw_takes_the_sampling_over_and_leaves_the_engine_nothing_to_filter() -> None:
    given = asked(temperature=0.7, top_p=0.9, top_k=40, extra_args={"mine": 1})
    told = drawn(3, 5, given, otherwise="")
    assert (told.temperature, told.top_p, told.top_k, told.max_tokens) == (1.0, 1.0, 0, 8)
    draw = Draw.from_json(told.extra_args[DRAW])
    assert (draw.seed, draw.sample, draw.temperature, draw.top_k, draw.top_p) == (3, 5, 0.7, 40, 0.9)
    assert told.extra_args["mine"] == 1 and given.extra_args == {"mine": 1} and given.temperature == 0.7


def test_a_greedy_sample_is_left_alone() -> None:
    greedy = asked(temperature=0)
    assert drawn(0, 0, greedy, otherwise="") is greedy


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"repetition_penalty": 1.1}, "no penalties"),
        ({"frequency_penalty": 0.5}, "no penalties"),
        ({"logprobs": 1, "temperature": 0.7}, "model's own distribution only: temperature=1"),
        ({"logprobs": 1, "top_p": 0.9}, "model's own distribution"),
        ({"logprobs": 0, "min_p": 0.1}, "model's own distribution"),
    ],
)
def test_what_a_coupled_draw_cannot_do_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        drawn(0, 0, asked(**given), otherwise="temperature=1")


def test_an_engine_keeps_its_own_processors_and_options() -> None:
    given = {"model": "m", "logits_processors": ["mine"], "logprobs_mode": "processed_logprobs"}
    told = coupled_engine(given)
    assert told == {
        "model": "m", "logits_processors": ["mine", PROCESSOR], "logprobs_mode": "raw_logprobs",
        "async_scheduling": False,
    }  # fmt: skip
    assert given["logits_processors"] == ["mine"] and "logprobs_mode" not in coupled_engine({})
