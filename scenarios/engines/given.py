"""What an engine was given, in canonical terms: native arguments read back through what each engine makes of them.

The inverse of `parameters`, for arguments from anywhere: ours, edited, a user's own mapping, another framework's
recording. Sources: vLLM 0.32.0 and SGLang 0.5.23 as installed. Standard library only: the judge uses it too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from scenarios.engines.parameters import CPU_BLOCK
from scenarios.settings import Sampling

Values = Mapping[str, Any]
SGLANG_OFF = 1 << 30  # TOP_K_ALL of SGLang: top-k switched off
SGLANG_KEEPS = 2  # SGLang answers at most context - prompt - 2 tokens (managers/scheduler.py)
# SGLang refuses to read min(context, KV pool) - 6 tokens or more: one of a request's and five of its input
# (managers/tp_worker.py, `get_worker_info`), and an input must be shorter than that (managers/utils.py).
SGLANG_REFUSES = 6


def _same(value: Any, native: Values) -> Any:
    return value


def _not(value: Any, native: Values) -> Any:
    return not value


@dataclass(frozen=True)
class Native:
    """One native argument: its name, what the engine does without it (None: it decides by itself, or says nothing),
    and what a value means in canonical terms."""

    name: str
    default: Any = None
    read: Callable[[Any, Values], Any] = _same

    def given(self, native: Values) -> Any:
        value = native.get(self.name)
        return self.default if value is None else self.read(value, native)


# Canonical names beside those of `settings.Engine`: `generation_config` (are the model's own sampling defaults read?)
# and `graph_padding` (are batches padded to the size of a captured graph?).
ENGINE: dict[str, dict[str, Native]] = {
    "vllm": {
        "dtype": Native("dtype", "auto"),
        "seed": Native("seed", 0),
        "max_model_len": Native("max_model_len"),
        "enforce_eager": Native("enforce_eager", False),
        "prefix_caching": Native("enable_prefix_caching", True),
        "chunked_prefill": Native("enable_chunked_prefill", True),
        "max_num_seqs": Native("max_num_seqs"),
        "tensor_parallel": Native("tensor_parallel_size", 1),
        "memory_fraction": Native("gpu_memory_utilization"),
        "kv_cache_tokens": Native(
            "num_gpu_blocks_override", None, lambda blocks, native: blocks * (native.get("block_size") or CPU_BLOCK)
        ),
        "generation_config": Native("generation_config", True, lambda source, _: source != "vllm"),
    },
    "sglang": {
        "dtype": Native("dtype", "auto"),
        "seed": Native("random_seed"),
        "max_model_len": Native("context_length", None, lambda context, _: context - SGLANG_KEEPS),
        "enforce_eager": Native("disable_cuda_graph", False),
        "graph_padding": Native("disable_cuda_graph_padding", True, _not),
        "prefix_caching": Native("disable_radix_cache", True, _not),
        "chunked_prefill": Native("chunked_prefill_size", True, lambda size, _: size > 0),
        "max_num_seqs": Native("max_running_requests"),
        "tensor_parallel": Native("tp_size", 1),
        "memory_fraction": Native("mem_fraction_static"),
        "kv_cache_tokens": Native("max_total_tokens"),
        "generation_config": Native("sampling_defaults", True, lambda source, _: source == "model"),
    },
    "hf": {
        "dtype": Native("dtype", "auto"),
        "seed": Native("seed"),
        "max_model_len": Native("max_model_len"),
        "max_num_seqs": Native("max_num_seqs"),
        "generation_config": Native("generation_config", True, lambda source, _: source != "none"),
    },
}


def _vllm_temperature(value: Any, native: Values) -> float:
    """vLLM raises what lies between 0 and 0.01 to 0.01; only 0 itself is greedy (sampling_params.py)."""
    return max(float(value), 0.01) if value else 0.0


def _sglang_temperature(value: Any, native: Values) -> float:
    return 0.0 if value < 1e-6 else float(value)


def _sglang_stops(value: Any, native: Values) -> tuple[int, ...]:
    """SGLang's ignore_eos leaves no token that stops (schedule_batch.py, `_check_token_based_finish`)."""
    return () if native.get("ignore_eos") else tuple(value)


def _stops(value: Any, native: Values) -> tuple[int, ...]:
    return tuple(value)


def _top_k(value: Any, native: Values) -> int:
    return -1 if value <= 0 or value >= SGLANG_OFF else int(value)


def _sampling(
    max_tokens: Native, min_tokens: str, temperature: Callable[[Any, Values], Any], stops: Any
) -> dict[str, Native]:
    return {
        "temperature": Native("temperature", 1.0, temperature),
        "top_k": Native("top_k", -1, _top_k),
        "top_p": Native("top_p", 1.0),
        "min_p": Native("min_p", 0.0),
        "repetition_penalty": Native("repetition_penalty", 1.0),
        "max_tokens": max_tokens,
        "min_tokens": Native(min_tokens, 0),
        "stop_token_ids": Native("stop_token_ids", (), stops),
        "ignore_eos": Native("ignore_eos", False),
    }


SAMPLING: dict[str, dict[str, Native]] = {
    "vllm": _sampling(Native("max_tokens", 16), "min_tokens", _vllm_temperature, _stops),
    "sglang": _sampling(Native("max_new_tokens", 128), "min_new_tokens", _sglang_temperature, _sglang_stops),
    "hf": _sampling(Native("max_new_tokens", 20), "min_new_tokens", _same, _stops),
}


def engine_given(backend: str, native: Values) -> dict[str, Any]:
    """Canonical engine parameters that `native` amounts to; None where the engine would decide by itself."""
    return {name: argument.given(native) for name, argument in ENGINE[backend].items()}


def sampling_given(backend: str, native: Values, defaults: Values | None = None) -> dict[str, Any]:
    """Canonical sampling parameters that `native` amounts to. `defaults`: native ones that the engine itself fills in
    for what is left out, such as those of a generation_config.json that it reads."""
    said = {**(defaults or {}), **{name: value for name, value in native.items() if value is not None}}
    return {name: argument.given(said) for name, argument in SAMPLING[backend].items()}


def most_scored(backend: str, resolved: Values) -> int:
    """Tokens of the longest sequence that an engine scores, by what it resolved; 0 where it does not say.

    vLLM draws a token behind what it scores, and its pool holds a whole context, or it does not start.
    """
    if backend == "sglang":
        held = [int(resolved.get(name) or 0) for name in ("context_length", "kv_cache_tokens")]
        return max(0, min(filter(None, held), default=0) - SGLANG_REFUSES - 1)
    return max(0, int(resolved.get("max_model_len") or 0) - 1)


def as_sampling(given: Values) -> Sampling:
    return Sampling(**{field.name: given[field.name] for field in dataclasses.fields(Sampling)})


def unlike(backend: str, given: Values) -> dict[str, str]:
    """Canonical parameters that were given with their values, and mean something else in this engine: name -> what.

    Only the engine's own sampler is concerned: a coupled draw applies every filter in the canonical order.
    """
    found = {}
    if backend == "sglang" and given["top_k"] > 0 and given["top_p"] < 1.0:
        found["top_k with top_p"] = "joint: top-p over the unfiltered mass, not over the renormalised top-k"
    if backend == "sglang" and given["repetition_penalty"] != 1.0:
        found["repetition_penalty"] = "covers the output only, not prompt and output"
    if backend == "vllm" and given["min_p"] > 0.0 and given["top_p"] < 1.0:
        found["min_p with top_p"] = "min-p before top-p, not after it"
    return found
