"""Hidden states by hooks on a decoder, as vLLM and SGLang build it, against Transformers' own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from ppo_support import random_models
from transformers import AutoConfig, AutoModelForCausalLM

from scenarios.engines.layers import PROJECTIONS, Capture, projections

pytestmark = pytest.mark.slow  # it imports Transformers, which takes 2 s

IDS = (1, 7, 30, 31, 5, 9)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    policy = random_models(Path(tmp_path_factory.mktemp("models")))["policy"]
    return AutoModelForCausalLM.from_pretrained(policy).eval()


class Norm(torch.nn.Module):
    """A norm that adds the residual in place, as the engines' fused ones do, and scales."""

    def forward(self, output: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        residual += output
        output.copy_(residual * 2)
        return output, residual


class Layer(torch.nn.Module):
    """As a layer of vLLM and SGLang: it returns its output and the residual that the next norm adds."""

    def __init__(self) -> None:
        super().__init__()
        self.input_layernorm, self.scale = Norm(), 3.0

    def forward(self, output: torch.Tensor, residual: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        if residual is None:
            residual, output = output, output * 2
        else:
            output, residual = self.input_layernorm(output, residual)
        return output * self.scale, residual


class Fused(torch.nn.Module):
    """A decoder whose residual stream is x, x + 6x = 7x, 7x + 42x = 49x, and 98x after the norm."""

    def __init__(self) -> None:
        super().__init__()
        self.model = torch.nn.Module()
        self.model.norm = Norm()
        self.model.embed_tokens = torch.nn.Embedding(40, 8)
        self.model.layers = torch.nn.ModuleList([Layer() for _ in range(2)])

    @torch.no_grad()
    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        output, residual = self.model.embed_tokens(ids), None
        for layer in self.model.layers:
            output, residual = layer(output, residual)
        return self.model.norm(output, residual)[0]  # type: ignore[no-any-return]


def layers_of(capture: Capture) -> list[list[float]]:
    states = capture.take(len(IDS))
    assert states is not None
    return states.layers


@torch.no_grad()
def test_hooks_see_what_transformers_says(model: Any) -> None:
    said = model(input_ids=torch.tensor([IDS]), output_hidden_states=True).hidden_states
    capture = Capture(model)
    model(input_ids=torch.tensor([IDS]))
    captured = layers_of(capture)
    assert len(captured) == len(said) == model.config.num_hidden_layers + 1
    for ours, theirs in zip(captured, said, strict=True):
        assert ours == pytest.approx(projections(theirs[0]).flatten().tolist(), abs=1e-6)
        assert len(ours) == len(IDS) * PROJECTIONS


@torch.no_grad()
def test_embeddings_are_seen_after_the_factor_of_their_model() -> None:
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1}
    config = AutoConfig.for_model("gemma2", vocab_size=40, head_dim=16, intermediate_size=64, **sizes)
    gemma = AutoModelForCausalLM.from_config(config).eval()
    said = gemma(input_ids=torch.tensor([IDS]), output_hidden_states=True).hidden_states
    capture = Capture(gemma)
    gemma(input_ids=torch.tensor([IDS]))
    captured = layers_of(capture)
    assert captured[0] == pytest.approx(projections(said[0][0]).flatten().tolist(), abs=1e-4)
    unscaled = projections(gemma.model.embed_tokens.weight[list(IDS)]).flatten().tolist()
    assert captured[0] != pytest.approx(unscaled, rel=0.1)


def test_a_residual_that_is_added_in_place_later_is_added_now() -> None:
    fused = Fused()
    capture = Capture(fused)
    fused(torch.tensor(IDS))
    captured = layers_of(capture)
    embedded = projections(fused.model.embed_tokens(torch.tensor(IDS))).flatten().tolist()
    for state, factor in zip(captured, (1, 7, 98), strict=True):
        expected = [factor * x for x in embedded]  # sums: each rounds by its largest term
        assert state == pytest.approx(expected, rel=1e-5, abs=1e-6 * max(map(abs, expected)))


def test_a_layer_that_is_wrong_is_the_first_that_differs() -> None:
    states = []
    for scale in (3.0, 3.1):
        torch.manual_seed(0)
        fused = Fused()
        fused.model.layers[0].scale = scale
        capture = Capture(fused)
        fused(torch.tensor(IDS))
        states.append(layers_of(capture))
    assert [a == b for a, b in zip(*states, strict=True)] == [True, False, False]  # type: ignore[arg-type]


def test_a_prefill_in_parts_is_put_together_and_what_follows_is_left_out() -> None:
    fused = Fused()
    whole = Capture(fused)
    fused(torch.tensor(IDS))
    expected = layers_of(whole)
    parts = Capture(fused)
    for some in (IDS[:4], IDS[4:], (3,)):
        fused(torch.tensor(some))
    captured = layers_of(parts)
    assert all(a == pytest.approx(b) for a, b in zip(captured, expected, strict=True))


def test_what_was_not_computed_is_not_shown() -> None:
    fused = Fused()
    capture = Capture(fused)
    fused(torch.tensor(IDS[:3]))  # the rest came from a cache
    assert capture.take(len(IDS)) is None
    assert Capture(torch.nn.Linear(2, 2)).take(1) is None  # no decoder that is known
    before = len(capture._states[0])
    fused(torch.tensor(IDS))
    assert len(capture._states[0]) == before, "hooks stay after take"
