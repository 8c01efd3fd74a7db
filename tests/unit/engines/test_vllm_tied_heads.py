"""What a reload of vLLM's weights on a CPU leaves behind in a head that is tied to the embedding."""

from __future__ import annotations

import torch

from scenarios.engines.vllm.worker import _sharing


def decoder(*, tied: bool) -> torch.nn.Module:
    model = torch.nn.Module()
    model.embed = torch.nn.Embedding(8, 4)
    model.layer, model.head = torch.nn.Linear(4, 4), torch.nn.Linear(4, 8, bias=False)
    if tied:
        model.head.weight = model.embed.weight
    for module in (model.layer, model.head):
        module.cpu_linear = torch.nn.functional.linear
    return model


def test_a_tied_head_is_packed_again_from_its_embedding() -> None:
    model = decoder(tied=True)
    assert _sharing(model) == [(model.head, model.embed)]


def test_a_head_of_its_own_is_left_to_the_reload() -> None:
    assert not _sharing(decoder(tied=False))
