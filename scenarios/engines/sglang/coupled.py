"""Coupled sampling inside SGLang: a custom logit processor. Runs in SGLang's own interpreter only."""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.sampling.custom_logit_processor import CustomLogitProcessor

from probes.draws import DRAW


class Coupled(CustomLogitProcessor):
    """Draws coupled tokens as a logit processor of SGLang.

    SGLang passes the request itself as `__req__`; its `output_ids` are current while the overlap schedule is off.
    """

    def __call__(self, logits: torch.Tensor, custom_param_list: list[dict[str, Any]] | None = None) -> torch.Tensor:
        # Imported here, because SGLang pickles this class by value where its module cannot be imported in the
        # scheduler.
        from scenarios.engines.coupling import Draw, draw_rows

        params = custom_param_list or []
        rows = [i for i, item in enumerate(params) if item and DRAW in item]
        draws = [Draw.from_json(params[i][DRAW]) for i in rows]
        positions = [draw.offset + len(params[i]["__req__"].output_ids) for draw, i in zip(draws, rows, strict=True)]
        return draw_rows(logits, rows, draws, positions)
