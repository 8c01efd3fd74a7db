"""Half precision on a CPU without instructions for it: linear layers compute in float32 and round once.

Kernels for half precision also add up in float32 and round their result, so values differ only by the order of sums.
On a CPU with AVX2 only, torch 2.13 took 10 to 30 times as long for a layer in bfloat16 as for this.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

HALF = (torch.bfloat16, torch.float16)


class Linear(nn.Linear):
    """`nn.Linear` whose product, in half precision, is computed in float32 and rounded to the type of the weights."""

    def forward(self, input: Tensor) -> Tensor:
        if self.weight.dtype not in HALF or input.device.type != "cpu":
            return super().forward(input)
        bias = None if self.bias is None else self.bias.float()
        return functional.linear(input.float(), self.weight.float(), bias).to(self.weight.dtype)


def multiply_in_float32(model: nn.Module, dtype: torch.dtype) -> None:
    """Make the linear layers of a half-precision model compute in float32, where the CPU has no instructions for the
    type.
    """
    if dtype not in HALF or _has_instructions(dtype):
        return
    for module in model.modules():
        if type(module) is nn.Linear:
            module.__class__ = Linear


def _has_instructions(dtype: torch.dtype) -> bool:
    kernels = torch.ops.mkldnn
    return bool(kernels._is_mkldnn_bf16_supported() if dtype == torch.bfloat16 else kernels._is_mkldnn_fp16_supported())
