"""Which of Transformers' computations of attention a model needs."""

from __future__ import annotations

from pathlib import Path

from transformers import AutoConfig


def attention_of(path: Path | str) -> dict[str, str]:
    """Return the arguments of `from_pretrained` that choose it; none where Transformers chooses well by itself.

    PyTorch's kernels (`sdpa`, its usual choice) have no soft cap, so Gemma 2 would be computed without it, and every
    engine, which has it, would be off: by up to 0.26 nats on the built-in model with soft caps.
    """
    text = AutoConfig.from_pretrained(path).get_text_config()
    return {"attn_implementation": "eager"} if getattr(text, "attn_logit_softcapping", None) else {}
