"""What tensor parallelism does to rounding: a model whose linear layers are computed in parts, as its ranks would.

An engine cannot be asked for its other topology, and a comparison of the two must not be its own yardstick: a rank
that holds an old shard would widen the tolerance. So the learner's model is cut by the plan that Transformers ships
for it (`tp_plan`). A column-parallel layer computes its outputs in parts, a row-parallel one adds up the parts' sums,
each in the model's own type. What a sum over a network adds (its order, a wider type) is not included.
"""

from __future__ import annotations

import copy
import fnmatch
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear


def in_parts(model: Any, parts: int) -> Any | None:
    """Return a copy of `model` whose planned linear layers compute in `parts`; None if it has no such plan or layer."""
    plan: dict[str, str] = getattr(model, "tp_plan", None) or {}
    twin = copy.deepcopy(model)
    cut = 0
    for name, module in twin.named_modules():
        style = next((style for pattern, style in plan.items() if fnmatch.fnmatchcase(name, pattern)), "")
        shared = next((forward for kind, forward in _FORWARDS.items() if kind in style), None)
        if shared is not None and isinstance(module, nn.Linear):
            vars(module)["forward"] = partial(shared, module, parts)
            cut += 1
    return twin if cut else None


def _row_parallel(layer: nn.Linear, parts: int, inputs: Tensor) -> Tensor:
    shards = zip(inputs.tensor_split(parts, -1), layer.weight.tensor_split(parts, 1), strict=True)
    total = torch.stack([linear(input_part, weight) for input_part, weight in shards]).sum(0)
    return total if layer.bias is None else total + layer.bias


def _column_parallel(layer: nn.Linear, parts: int, inputs: Tensor) -> Tensor:
    biases = [None] * parts if layer.bias is None else layer.bias.tensor_split(parts)
    return torch.cat([linear(inputs, w, b) for w, b in zip(layer.weight.tensor_split(parts), biases, strict=True)], -1)


_FORWARDS = {"rowwise": _row_parallel, "colwise": _column_parallel}  # by a part of the style's name in a model's plan
