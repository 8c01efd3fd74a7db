"""Linear layers of half precision that compute in float32: the type's own values, up to the order of sums."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from scenarios.models import wide

pytestmark = pytest.mark.slow  # it imports Transformers, which takes 2 s


def model(dtype: torch.dtype) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 48), nn.GELU(), nn.Linear(48, 32, bias=False)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_values_and_gradients_are_those_of_the_type(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wide, "_has_instructions", lambda dtype: False)
    plain, changed, inputs = model(dtype), model(dtype), torch.randn(8, 64).to(dtype)
    wide.multiply_in_float32(changed, dtype)
    assert type(changed[0]) is type(copy.deepcopy(changed)[2]) is wide.Linear
    assert changed.state_dict().keys() == plain.state_dict().keys()
    ulp = torch.finfo(dtype).eps
    for one in (plain, changed):
        one(inputs).float().square().sum().backward()
    assert changed(inputs).dtype == dtype
    assert torch.allclose(plain(inputs).float(), changed(inputs).float(), atol=2 * ulp, rtol=2 * ulp)
    for one, other in zip(plain.parameters(), changed.parameters(), strict=True):
        assert other.grad is not None and other.grad.dtype == dtype
        assert torch.allclose(one.grad.float(), other.grad.float(), atol=0.1, rtol=16 * ulp)  # type: ignore[union-attr]


def test_float32_and_a_cpu_that_knows_the_type_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wide, "_has_instructions", lambda dtype: dtype == torch.bfloat16)
    for dtype in (torch.float32, torch.bfloat16):
        made = model(dtype)
        wide.multiply_in_float32(made, dtype)
        assert type(made[0]) is nn.Linear
    made = model(torch.float32)
    wide.multiply_in_float32(made, torch.float16)
    assert torch.equal(made(torch.ones(1, 64)), model(torch.float32)(torch.ones(1, 64)))  # a copy that was made float32
