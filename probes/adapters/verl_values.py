"""Functions that verl's readers share: its configuration as plain values, columns of a TensorDict, neutral sampling."""

from __future__ import annotations

import sys
from typing import Any

# Settings of a rollout that leave the model's distribution unchanged.
_NEUTRAL = {"temperature": 1.0, "top_k": -1, "top_p": 1.0, "repetition_penalty": 1.0}


def container(config: Any) -> Any:
    """Return an OmegaConf configuration as a plain dictionary."""
    omega: Any = sys.modules.get("omegaconf")
    if omega is not None and omega.OmegaConf.is_config(config):
        return omega.OmegaConf.to_container(config, resolve=True)
    return config if isinstance(config, dict) else vars(config)


def tempered(rollout: dict[str, Any]) -> bool:
    """Whether something other than the model, such as temperature, changes the log-probabilities."""
    return any(rollout.get(name, value) not in (value, None) for name, value in _NEUTRAL.items())


def each(batch: Any, name: str) -> list[Any]:
    """Return the values of a column of a TensorDict as a list, whatever type the column has."""
    value = batch[name]
    return list(value.tolist() if hasattr(value, "tolist") else value)


def scalar(batch: Any, name: str, default: Any) -> Any:
    if name not in list(batch.keys()):  # TensorDict does not support `in`
        return default
    value = batch[name]
    value = getattr(value, "data", value) if not hasattr(value, "shape") else value
    while isinstance(value, (list, tuple)) or (hasattr(value, "shape") and len(value.shape)):
        value = value[0]
    return value.item() if hasattr(value, "item") else value
