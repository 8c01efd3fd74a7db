"""Sizes of a model, read from its config.json without loading it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.errors import BadInput
from probes import limits
from scenarios import tiny

# Names of a model's longest sequence in Hugging Face configurations; vLLM reads the same (config/model.py).
_CONTEXTS = (
    "max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_sequence_length", "max_seq_length",
)  # fmt: skip


@dataclass(frozen=True)
class Shape:
    """Sizes of a model from its config.json; 0 where it does not say."""

    context: int = 0
    heads: int = 0
    head_size: int = 0

    @staticmethod
    def of(config: Mapping[str, Any]) -> Shape:
        """Read the sizes. Scaled positions lengthen the context by their factor. Latent attention has no head size."""
        text = config.get("text_config")
        if isinstance(text, dict):  # a model of several modalities
            config = {**config, **text}
        contexts = [value for value in map(config.get, _CONTEXTS) if isinstance(value, int)]
        heads, width = (_count(config.get(name)) for name in ("num_attention_heads", "hidden_size"))
        size = _count(config.get("head_dim"))
        if not size and heads:
            size = width // heads
        longest = max(contexts, default=0) * _lengthened(config)
        return Shape(int(longest), heads, 0 if "kv_lora_rank" in config else size)

    @staticmethod
    def read(path: str) -> Shape:
        """Return the sizes of a scenario's model: a directory, the built-in one, or one of the local cache. Raises
        BadInput.
        """
        if (builtin := tiny.configuration(path)) is not None:
            return Shape.of(builtin)
        file = Path(path).expanduser() / "config.json"
        if not file.is_file() and "/" in path:
            import huggingface_hub

            cached = huggingface_hub.try_to_load_from_cache(path, "config.json")
            file = Path(cached) if isinstance(cached, str) else file
        try:
            config = json.loads(limits.read_text(file))
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            raise BadInput(f"{file} cannot be read: {why}", fix=tiny.OPTIONS["model.path"] + tiny.ANY_MODEL) from error
        return Shape.of(config) if isinstance(config, dict) else Shape()


def _lengthened(config: Mapping[str, Any]) -> float:
    """Return the factor by which scaled positions lengthen a model's context; 1 where they do not."""
    scaling = config.get("rope_scaling") or config.get("rope_parameters") or {}
    factor = scaling.get("factor") if isinstance(scaling, dict) else None
    return factor if isinstance(factor, int | float) and factor > 1 else 1


def longest(path: str) -> int:
    """The tokens that a scenario's model was made for; 0 where that cannot be read."""
    try:
        return Shape.read(path).context
    except BadInput:
        return 0


def _count(value: Any) -> int:
    return value if isinstance(value, int) and value > 0 else 0
