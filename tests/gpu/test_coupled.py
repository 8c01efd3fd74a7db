"""Coupled draws: the same noise, and the same tokens, on a GPU as on a CPU."""

from __future__ import annotations

import pytest
import torch

from scenarios.engines.coupling import Draw, choose, gumbel, uniform
from scenarios.settings import Sampling

ROWS, VOCABULARY = 64, 32_000


def places(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.arange(ROWS, device=device) * 7, torch.arange(ROWS, device=device) % 11


def test_the_uniform_numbers_are_the_same_bits(device: torch.device) -> None:
    """Integer arithmetic, so nothing of it may round."""
    here, there = (uniform(3, *places(torch.device(name)), VOCABULARY).cpu() for name in ("cpu", device))
    assert torch.equal(here, there)


def test_the_noise_differs_by_the_logarithm_only(device: torch.device) -> None:
    here, there = (gumbel(3, *places(torch.device(name)), VOCABULARY).cpu() for name in ("cpu", device))
    assert float((here - there).abs().max()) < 1e-12


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.7, top_p=0.9), Sampling(top_k=20, min_p=0.02)])
def test_the_same_logits_give_the_same_tokens(dtype: torch.dtype, sampling: Sampling, device: torch.device) -> None:
    """But for ties within rounding."""
    logits = torch.randn(ROWS, VOCABULARY, generator=torch.Generator().manual_seed(1)).to(dtype) * 3
    draws = [Draw.of(sampling, seed=5, sample=row) for row in range(ROWS)]
    positions = [row % 11 for row in range(ROWS)]
    here, there = (choose(logits.to(where), draws, positions).cpu() for where in ("cpu", device))
    assert int((here != there).sum()) <= 1
