"""vLLM's SamplingParams, as far as the plugins of coupled sampling look at them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


def asked(**given: Any) -> SimpleNamespace:
    """Those of a plain request, with some changed."""
    plain = {
        "temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, "logprobs": None,
        "presence_penalty": 0.0, "frequency_penalty": 0.0, "extra_args": None, "max_tokens": 8, "n": 1,
    }  # fmt: skip
    return SimpleNamespace(**{**plain, **given})
