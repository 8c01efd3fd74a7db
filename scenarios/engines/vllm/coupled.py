"""Coupled sampling inside vLLM: one logits processor for each of its two model runners. Runs in vLLM's interpreter
only.

Model Runner V1 (every CPU, and CUDA without Triton) maintains a persistent batch through added/removed/moved. Model
Runner V2 (the CUDA default of 0.32) keys state by request slot and refuses V1 processors. Hence two classes. Which
one ran is in `EngineInfo.resolved["model_runner"]`.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor, MoveDirectionality

from probes.draws import DRAW
from scenarios.engines.coupling import Draw, draw_rows

try:
    from vllm.v1.worker.gpu.sample.logits_processor.interface import LogitsProcessor as SlotLogitsProcessor
except ModuleNotFoundError:  # before 0.31: its Model Runner V2 takes no processors, so V1 runs
    SlotLogitsProcessor = object


def _draw(params: Any) -> Draw | None:
    data = (getattr(params, "extra_args", None) or {}).get(DRAW)
    return Draw.from_json(data) if data else None


class CoupledV1(LogitsProcessor):
    """For Model Runner V1. `output_tok_ids` of an added request is a live reference, so its length is the position."""

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        self._rows: dict[int, tuple[Draw, list[int]]] = {}

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        if batch_update is None:
            return
        # vLLM's order: removed, then added, then moved.
        for index in batch_update.removed:
            self._rows.pop(index, None)
        for index, params, _, output in batch_update.added:
            draw = _draw(params)
            if draw is None:
                self._rows.pop(index, None)
            else:
                self._rows[index] = (draw, output)
        for source, target, direction in batch_update.moved:
            moving, staying = self._rows.pop(source, None), self._rows.pop(target, None)
            if moving is not None:
                self._rows[target] = moving
            if staying is not None and direction == MoveDirectionality.SWAP:
                self._rows[source] = staying

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        rows = sorted(index for index in self._rows if index < logits.shape[0])
        draws = [self._rows[index][0] for index in rows]
        positions = [draw.offset + len(self._rows[index][1]) for draw, index in zip(draws, rows, strict=True)]
        return draw_rows(logits, rows, draws, positions)


class CoupledV2(SlotLogitsProcessor):
    """For Model Runner V2. Rows map to request slots; a row's position in its sequence gives the response position."""

    def __init__(self, vllm_config: Any, req_states: Any) -> None:
        self._states = req_states
        self._draws: dict[int, Draw] = {}

    def add_request(self, req_idx: int, sampling_params: Any) -> bool:
        draw = _draw(sampling_params)
        if draw is None:
            self._draws.pop(req_idx, None)
            return False
        self._draws[req_idx] = draw
        return True

    def apply(self, logits: torch.Tensor, ctx: Any) -> torch.Tensor:
        slots = ctx.expanded_idx_mapping.tolist()
        rows = [row for row, slot in enumerate(slots) if slot in self._draws]
        draws = [self._draws[slots[row]] for row in rows]
        # `pos` is the position of the row's input token, so the token drawn now is at pos + 1 of the sequence.
        lengths = (ctx.pos + 1).tolist()
        prompts = self._states.prompt_len.np
        positions = [d.offset + lengths[row] - int(prompts[slots[row]]) for d, row in zip(draws, rows, strict=True)]
        return draw_rows(logits, rows, draws, positions)


class Coupled(CoupledV1, CoupledV2):
    """The class that is registered. vLLM chooses its runner after the processor was named, so one class serves both.

    V1 constructs it with (config, device, pin_memory) and calls `apply(logits)`. V2 constructs it with (config,
    req_states) and calls `apply(logits, ctx)`.
    """

    def __init__(self, vllm_config: Any, *runner: Any) -> None:
        if len(runner) == 2:
            CoupledV1.__init__(self, vllm_config, *runner)
        else:
            CoupledV2.__init__(self, vllm_config, *runner)

    def apply(self, logits: torch.Tensor, ctx: Any = None) -> torch.Tensor:  # type: ignore[override]
        return CoupledV1.apply(self, logits) if ctx is None else CoupledV2.apply(self, logits, ctx)
