"""Buffers are held against what the model's configuration computes; what nobody knows is not tested."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from scenarios.bench.readback import _buffers

pytestmark = pytest.mark.slow
SHAPE = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16,
    "intermediate_size": 32, "vocab_size": 64, "layer_types": ["sliding_attention", "full_attention"],
}  # fmt: skip
Change = Callable[[dict[str, torch.Tensor]], None]


def states(kind: str, change: Change = lambda buffers: None) -> dict[str, str]:
    """What is said of the buffers of an engine that holds the model's, but for a change."""
    shape = SHAPE if kind.startswith("gemma") else {key: SHAPE[key] for key in SHAPE if key != "layer_types"}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **shape))
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    change(buffers)
    return {name: state for name, (state, _) in _buffers(buffers, model).items()}


@pytest.mark.parametrize("kind", ["gemma3_text", "gemma2", "llama", "qwen2"])
def test_buffers_of_a_sound_engine_are_equal(kind: str) -> None:
    said = states(kind)
    assert said and set(said.values()) == {"equal"}


@pytest.mark.parametrize("part", ["embed_scale", "inv_freq"])
def test_a_buffer_that_the_configuration_does_not_give_differs(part: str) -> None:
    def bend(buffers: dict[str, torch.Tensor]) -> None:
        for name in buffers:
            if name.endswith(part):
                buffers[name] *= 1.01

    said = states("gemma3_text", bend)
    assert {name for name, state in said.items() if state == "differs"} == {
        name for name in said if name.endswith(part)
    }


@pytest.mark.parametrize(("name", "value", "state"), [
    ("attn._k_scale", 1.0, "equal"), ("attn.k_scale", 2.0, "differs"), ("model.normalizer_scale", 5.7, "not tested"),
])  # fmt: skip
def test_only_scales_of_a_cache_are_one(name: str, value: float, state: str) -> None:
    assert states("llama", lambda buffers: buffers.update({name: torch.tensor(value)}))[name] == state
