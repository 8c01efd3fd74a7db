"""What the plugin does inside SGLang, on stand-ins: SGLang itself is not installed where unit tests run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from scenarios.engines.sglang.plugin import RAW, keep_raw


def test_the_models_own_logits_are_kept_ahead_of_penalties() -> None:
    """SGLang masks end tokens below a minimal length, and applies penalties, in place and ahead of its sampler."""
    output: Any = SimpleNamespace(next_token_logits=torch.tensor([[1.0, 2.0, 3.0]]))

    def penalised(runner: Any, logits_output: Any, sampling_info: str) -> str:
        logits_output.next_token_logits[:, 2] = float("-inf")
        return sampling_info

    assert keep_raw(penalised, None, output, "penalties") == "penalties"
    assert output.next_token_logits[0, 2] == float("-inf")
    assert getattr(output, RAW).tolist() == [[1.0, 2.0, 3.0]]
    output.next_token_logits = None  # a request that only scores
    keep_raw(lambda *arguments: None, None, output, "none")
    assert getattr(output, RAW) is None
