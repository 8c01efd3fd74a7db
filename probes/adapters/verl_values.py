"""What the readers of verl share: its configuration as plain values, columns of a TensorDict, and what is neutral."""

from __future__ import annotations

import sys
from typing import Any

# Settings of a rollout that ask for the model's plain distribution.
_NEUTRAL = {"temperature": 1.0, "top_k": -1, "top_p": 1.0, "repetition_penalty": 1.0}


def container(config: Any) -> Any:
    """A plain dictionary of OmegaConf's."""
    omega: Any = sys.modules.get("omegaconf")
    if omega is not None and omega.OmegaConf.is_config(config):
        return omega.OmegaConf.to_container(config, resolve=True)
    return config if isinstance(config, dict) else vars(config)


def tempered(rollout: dict[str, Any]) -> bool:
    """Do log-probabilities come after something that is not the model's?"""
    return any(rollout.get(name, value) not in (value, None) for name, value in _NEUTRAL.items())


def each(batch: Any, name: str) -> list[Any]:
    """The values of a column of a TensorDict, whatever holds them."""
    value = batch[name]
    return list(value.tolist() if hasattr(value, "tolist") else value)


def scalar(batch: Any, name: str, default: Any) -> Any:
    if name not in list(batch.keys()):  # a TensorDict refuses `in`
        return default
    value = batch[name]
    value = getattr(value, "data", value) if not hasattr(value, "shape") else value
    while isinstance(value, (list, tuple)) or (hasattr(value, "shape") and len(value.shape)):
        value = value[0]
    return value.item() if hasattr(value, "item") else value
