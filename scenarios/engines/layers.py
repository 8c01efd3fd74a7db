"""Hidden states of a decoder, from any engine, reduced to numbers that are small enough to send.

Each token's state becomes a few fixed random projections. Its norm would not do: the last state has passed the final
norm, which makes all norms equal. What enters the head is shown whole for a few tokens, so that another head can be
given it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from scenarios.engines.hidden_states import HiddenStates

PROJECTIONS = 4  # of each hidden state: two different states do not agree in all four by chance
WHOLE = 64  # tokens at the end of a sequence of which the last state is shown whole


def hidden_states_of(states: list[torch.Tensor]) -> HiddenStates:
    """Return hidden states [tokens, width], of the embeddings and each layer, as they are sent."""
    return HiddenStates([projections(state).flatten().tolist() for state in states], states[-1][-WHOLE:].tolist())


def projections(state: torch.Tensor) -> torch.Tensor:
    """Project [tokens, width] to [tokens, PROJECTIONS], float64 on the CPU."""
    width = state.shape[-1]
    ways = torch.randn(width, PROJECTIONS, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return state.detach().double().cpu() @ ways


class Capture:
    """Captures the residual stream of forward passes between `__init__` and `take`, like Transformers'
    `hidden_states`.

    That is what enters the first layer (the embeddings, after any factor), the output of each layer but the last, and
    the last one after the final norm. The state before a layer is read at its first norm. vLLM's and SGLang's norms
    receive the layer's output and the residual, add them in place and return (normed, sum); others receive the sum.
    The return value of a layer is less reliable: SGLang's keeps the residual elsewhere. Because of the addition in
    place, each state is projected while its hook runs. A CUDA graph or a compiled model calls no hooks; then nothing
    is captured.
    """

    def __init__(self, model: Any) -> None:
        self._states: list[list[torch.Tensor]] = []
        self._handles: list[Any] = []
        self._last: list[torch.Tensor] = []
        decoder = getattr(model, "model", None)
        norms = [getattr(layer, "input_layernorm", None) for layer in getattr(decoder, "layers", ())]
        last, embeddings = getattr(decoder, "norm", None), getattr(decoder, "embed_tokens", None)
        if not norms or last is None or embeddings is None or None in norms:
            return  # another architecture, or one stage of a pipeline
        self._watch(embeddings, lambda inputs, output: output)
        for norm in norms:
            self._watch(norm, lambda inputs, output: output[1] if isinstance(output, tuple) else inputs[0])
        self._watch(last, self._entering_head)

    def _watch(self, module: Any, state_of: Callable[[Any, Any], torch.Tensor]) -> None:
        kept: list[torch.Tensor] = []

        def keep(module: Any, inputs: Any, output: Any) -> None:
            state = state_of(inputs, output)
            kept.append(projections(state.reshape(-1, state.shape[-1])))

        self._states.append(kept)
        self._handles.append(module.register_forward_hook(keep))

    def _entering_head(self, inputs: Any, output: Any) -> torch.Tensor:
        state: torch.Tensor = output[0] if isinstance(output, tuple) else output
        self._last.append(state.detach().reshape(-1, state.shape[-1]).float().cpu())
        return state

    def take(self, tokens: int) -> HiddenStates | None:
        """Stop capturing, and return the states of the first `tokens` tokens.

        None where fewer tokens were captured. A first layer that does not call its norm leaves the embeddings as they
        are.
        """
        for handle in self._handles:
            handle.remove()
        if self._states:
            entering = self._states[1]
            del self._states[0 if entering else 1]
        if not self._states or any(sum(len(part) for part in parts) < tokens for parts in self._states):
            return None
        layers = [torch.cat(parts)[:tokens].flatten().tolist() for parts in self._states]
        return HiddenStates(layers, torch.cat(self._last)[:tokens][-WHOLE:].tolist())
