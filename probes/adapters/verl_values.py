"""Functions that verl's readers share: its configuration as plain values, columns of a TensorDict, sampling."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from probes.adapters.adapter_values import canonical_sampling, changed_by, only_tempered


def container(config: Any) -> Any:
    """Return an OmegaConf configuration as a plain dictionary."""
    omega: Any = sys.modules.get("omegaconf")
    if omega is not None and omega.OmegaConf.is_config(config):
        return omega.OmegaConf.to_container(config, resolve=True)
    return config if isinstance(config, dict) else vars(config)


def configured_sampling(rollout: dict[str, Any]) -> dict[str, Any]:
    """Return the canonical sampling parameters that a rollout's configuration sets. Whether verl passes them on is in
    its requests.
    """
    return canonical_sampling({**rollout, "max_tokens": rollout.get("response_length")})


def reports_raw(rollout: dict[str, Any], engine: str) -> bool:
    """Whether an engine reports the model's own log-probabilities: only vLLM can be told to."""
    return engine == "vllm" and rollout.get("logprobs_mode") == "raw_logprobs"


def processed(sampling: Mapping[str, Any], rollout: dict[str, Any], engine: str) -> bool:
    """Whether an engine reports log-probabilities that a request's sampling parameters have changed."""
    return bool(changed_by(sampling)) and not reports_raw(rollout, engine)


def comparable(sampling: Mapping[str, Any], engine: str) -> bool:
    """Whether processed log-probabilities are of the distribution that verl's learner scores, after the temperature.

    SGLang's own may be of another, by a variable of its process (`SGLANG_RETURN_ORIGINAL_LOGPROB`).
    """
    return engine == "vllm" and only_tempered(sampling)


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
