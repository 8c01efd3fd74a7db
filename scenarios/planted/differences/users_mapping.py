"""A mapping from vLLM's parameters to SGLang's, as a user once wrote it in good faith, with its four mistakes.

An example of `harness parity vllm sglang --mapping FILE.py` (docs/reference/parameters.md); planted by the fault
`users-mapping`.
"""

from __future__ import annotations

from typing import Any


def sglang_engine(asked: dict[str, Any], ours: dict[str, Any]) -> dict[str, Any]:
    """Return arguments of `sglang.Engine` for `asked`: canonical engine parameters, the model's path and the device."""
    return {
        "model_path": asked["model"],
        "dtype": asked["dtype"],
        "tp_size": asked["tensor_parallel"],
        "disable_radix_cache": not asked["prefix_caching"],
        "random_seed": asked["seed"],
        "disable_cuda_graph": not asked["enforce_eager"],  # inverted: eager means no graphs
        "disable_cuda_graph_padding": not asked["prefix_caching"],  # tied to an unrelated parameter
        "context_length": asked["max_model_len"],  # SGLang keeps two tokens of it for itself
        "log_level": "error",
    }


def sglang_sampling(asked: dict[str, Any], ours: dict[str, Any]) -> dict[str, Any]:
    """Return SGLang's `sampling_params` for `asked`: canonical sampling parameters."""
    return {  # min_tokens is missing: SGLang calls it min_new_tokens
        "max_new_tokens": asked["max_tokens"],
        "top_p": asked["top_p"],
        "top_k": asked["top_k"],
        "temperature": asked["temperature"],
        "repetition_penalty": asked["repetition_penalty"],
        "skip_special_tokens": False,
    }
