"""Hidden states of a decoder, whichever engine computes them, as numbers that are small enough to send.

A few fixed random projections of each token's state: not its norm, because the last state has been through the final
norm, which makes all of one size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

PROJECTIONS = 4  # of each hidden state: two that differ agree in none of four by chance


def projections(state: torch.Tensor) -> torch.Tensor:
    """[tokens, width] -> [tokens, PROJECTIONS], float64 on the CPU."""
    width = state.shape[-1]
    ways = torch.randn(width, PROJECTIONS, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return state.detach().double().cpu() @ ways


class Capture:
    """The residual stream of the forward passes between `__init__` and `take`, as Transformers' `hidden_states` has it:
    the embeddings, each layer but the last, and the last after the final norm.

    The state after a layer is read at the next layer's first norm. vLLM's and SGLang's norms are given the layer's
    output and the residual, add them in place and return (normed, sum); others are given the sum. What a layer itself
    returns is less sure: SGLang's keeps the residual elsewhere. In place: so each state is projected while its hook
    runs. A graph or a compiled model calls no hooks; then nothing is captured.
    """

    def __init__(self, model: Any) -> None:
        self._states: list[list[torch.Tensor]] = []
        self._handles: list[Any] = []
        decoder = getattr(model, "model", None)
        norms = [getattr(layer, "input_layernorm", None) for layer in getattr(decoder, "layers", ())]
        last, embeddings = getattr(decoder, "norm", None), getattr(decoder, "embed_tokens", None)
        if not norms or last is None or embeddings is None or None in norms:
            return  # another architecture, or one stage of a pipeline
        self._watch(embeddings, lambda inputs, output: output)
        for norm in norms[1:]:
            self._watch(norm, lambda inputs, output: output[1] if isinstance(output, tuple) else inputs[0])
        self._watch(last, lambda inputs, output: output[0] if isinstance(output, tuple) else output)

    def _watch(self, module: Any, state_of: Callable[[Any, Any], torch.Tensor]) -> None:
        kept: list[torch.Tensor] = []

        def keep(module: Any, inputs: Any, output: Any) -> None:
            state = state_of(inputs, output)
            kept.append(projections(state.reshape(-1, state.shape[-1])))

        self._states.append(kept)
        self._handles.append(module.register_forward_hook(keep))

    def take(self, tokens: int) -> list[list[float]] | None:
        """[embeddings and layers][tokens x projections] of the first `tokens` tokens that came by; None where fewer
        did. No more is captured."""
        for handle in self._handles:
            handle.remove()
        if not self._states or any(sum(len(part) for part in parts) < tokens for parts in self._states):
            return None
        return [torch.cat(parts)[:tokens].flatten().tolist() for parts in self._states]
