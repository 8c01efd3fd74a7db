"""A model's tensors as its saved checkpoint holds them: the names and shapes that every engine loads.

Transformers 5 keeps some models in another form in memory: the experts of a layer as one tensor, or a renamed module.
Its `save_pretrained` reverts that, and so does this module, by the same function. A sync with the names in memory was
refused: vLLM has no "layers.0.mlp" of Mixtral, whose checkpoint says "block_sparse_moe".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

from scenarios.models.wide import HALF

WIDE_EXPERTS = "eager"  # an implementation of experts that accepts every dtype; grouped_mm refuses float64 (torch 2.13)


def tensors(model: PreTrainedModel) -> dict[str, Tensor]:
    """Return name -> tensor of the checkpoint, always in the same order; a tied tensor once, under its first name.

    Tensors that the model holds in their saved form are its own; the others are contiguous copies.
    """
    first_names: dict[int, str] = {}
    state = model.state_dict()
    named = {name: state[name] for name in state if first_names.setdefault(state[name].data_ptr(), name) == name}
    converted: dict[str, Tensor] = revert_weight_conversion(model, named)
    return named if all(_shares_memory(tensor, named.get(name)) for name, tensor in converted.items()) else converted


def restore(model: PreTrainedModel, changed: Mapping[str, Tensor]) -> None:
    """Write these tensors of the checkpoint into the model, whatever form it keeps them in.

    Raises KeyError with the first name that the checkpoint does not have.
    """
    state, saved_tensors = model.state_dict(), tensors(model)
    for name, tensor in changed.items():
        if name not in saved_tensors and name not in state:
            raise KeyError(name)
        if name in state and _shares_memory(state[name], saved_tensors.get(name, state[name])):
            state[name].copy_(tensor)
    converted = {
        name: tensor
        for name, tensor in changed.items()
        if name in saved_tensors and not _shares_memory(saved_tensors[name], state.get(name))
    }
    if converted:
        full_state = {**tensors(model), **converted}
        fresh = type(model).from_pretrained(None, config=model.config, state_dict=full_state, dtype=model.dtype)
        model.load_state_dict(fresh.state_dict())


def _shares_memory(first: Tensor, second: Tensor | None) -> bool:
    return second is not None and first.data_ptr() == second.data_ptr() and first.shape == second.shape


def widen(model: Any, dtype: torch.dtype) -> PreTrainedModel:
    """Return a model with the same weights that computes in `dtype`.

    What follows from the configuration alone, such as the factor of Gemma's embeddings, is computed anew: an engine
    that loads the weights in `dtype` never rounds it.
    """
    state = model.state_dict()
    derived = [buffer for name, buffer in model.named_buffers() if name not in state]
    wide: Any
    if any(buffer.dtype in HALF for buffer in derived):
        wide = type(model).from_pretrained(None, config=model.config, state_dict=tensors(model), dtype=dtype)
        wide = wide.to(device=model.device).train(model.training)
    else:
        wide = model.to(dtype)
    if hasattr(wide.config, "_experts_implementation"):
        wide.set_experts_implementation(WIDE_EXPERTS)
    model_in_dtype: PreTrainedModel = wide
    return model_in_dtype
