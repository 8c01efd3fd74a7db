"""Each engine's own names of canonical parameters: how they are written, and read back through what it makes of them.

Arguments are read back from anywhere: ours, edited, a user's own mapping, another framework's recording. Sources: vLLM
0.32.0 and SGLang 0.5.23 as installed. Standard library only: the judge uses it too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from scenarios.engines import registry
from scenarios.settings import Sampling

Values = Mapping[str, Any]
CPU_BLOCK = 32  # tokens a KV block of vLLM on a CPU: the smallest that its backend prefers
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
    what a value means in canonical terms, a note on it for docs/reference/parameters.md, and how our own mapping writes
    a canonical value."""

    name: str
    default: Any = None
    read: Callable[[Any, Values], Any] = _same
    note: str = ""
    write: Callable[[Any], Any] = lambda value: value

    def given(self, native: Values) -> Any:
        value = native.get(self.name)
        return self.default if value is None else self.read(value, native)


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


ENGINE: dict[str, dict[str, Native]] = {
    "vllm": {
        "dtype": Native("dtype", "auto", note="auto: bfloat16 of a float32 checkpoint on a CPU"),
        "seed": Native("seed", 0, note="0 when left out"),
        "max_model_len": Native("max_model_len", note="stops at prompt + response = max_model_len"),
        "enforce_eager": Native("enforce_eager", False, note="no CUDA graphs and no compilation"),
        "prefix_caching": Native("enable_prefix_caching", True, note="on unless switched off"),
        "chunked_prefill": Native("enable_chunked_prefill", True, note="a flag"),
        "max_num_seqs": Native("max_num_seqs", note="sequences in one batch"),
        "tensor_parallel": Native("tensor_parallel_size", 1, note="workers"),
        "memory_fraction": Native("gpu_memory_utilization", note="the executor's whole share of the accelerator"),
        "kv_cache_tokens": Native(
            "num_gpu_blocks_override",
            read=lambda blocks, native: blocks * (native.get("block_size") or CPU_BLOCK),
            note="blocks times their size",
        ),
        "generation_config": Native(
            "generation_config",
            True,
            lambda source, _: source != "vllm",
            note='fills in what a request leaves out, unless "vllm"',
        ),
    },
    "sglang": {
        "dtype": Native("dtype", "auto", note="auto: float16"),
        "seed": Native("random_seed", note="random when left out"),
        "max_model_len": Native(
            "context_length",
            read=lambda context, _: context - SGLANG_KEEPS,
            note="answers min(asked, context - prompt - 2, room in the KV pool); a prompt of context - 6 or more is "
            "rejected",
        ),
        "enforce_eager": Native("disable_cuda_graph", False, note="no CUDA graphs"),
        "graph_padding": Native(
            "disable_cuda_graph_padding", True, _not, note="batches are padded to the size of a captured graph"
        ),
        "prefix_caching": Native("disable_radix_cache", True, _not, note="on unless disable_radix_cache"),
        "chunked_prefill": Native(
            "chunked_prefill_size", True, lambda size, _: size > 0, note="a number of tokens; -1 is off"
        ),
        "max_num_seqs": Native("max_running_requests", note="requests that run at once"),
        "tensor_parallel": Native("tp_size", 1, note="workers"),
        "memory_fraction": Native("mem_fraction_static", note="weights and KV pool only"),
        "kv_cache_tokens": Native("max_total_tokens", note="tokens"),
        "generation_config": Native(
            "sampling_defaults",
            True,
            lambda source, _: source == "model",
            note="fills it in at the OpenAI endpoint only",
        ),
    },
    "hf": {
        "dtype": Native("dtype", "auto"),
        "seed": Native("seed"),
        "max_model_len": Native("max_model_len"),
        "max_num_seqs": Native("max_num_seqs"),
        "generation_config": Native("generation_config", True, lambda source, _: source != "none"),
    },
}

# What an engine does where it has no argument for a parameter, or none that a mapping sets.
WITHOUT_ARGUMENT: dict[str, dict[str, str]] = {
    "vllm": {"graph_padding": "no such parameter", "kv_cache_dtype": "auto, fp8, fp8_e5m2"},
    "sglang": {"kv_cache_dtype": "auto, fp8_e4m3, fp8_e5m2"},
}

SAMPLING: dict[str, dict[str, Native]] = {
    "vllm": {
        "temperature": Native(
            "temperature", 1.0, _vllm_temperature, note="between 0 and 0.01 it becomes 0.01; 0 is greedy"
        ),
        "top_k": Native(
            "top_k",
            -1,
            _top_k,
            note="off: 0 or -1; before top-p, which is over what top-k leaves",
            write=lambda value: max(value, 0),
        ),
        "top_p": Native("top_p", 1.0, note="over the renormalised top-k"),
        "min_p": Native("min_p", 0.0, note="before top-k and top-p"),
        "repetition_penalty": Native("repetition_penalty", 1.0, note="prompt and output"),
        "max_tokens": Native("max_tokens", 16, note="16 when left out"),
        "min_tokens": Native("min_tokens", 0, note="masks end tokens and holds stop strings back"),
        "stop_token_ids": Native("stop_token_ids", (), _stops, note="beside the model's own ends", write=list),
        "ignore_eos": Native("ignore_eos", False, note="explicit stop_token_ids still stop"),
    },
    "sglang": {
        "temperature": Native("temperature", 1.0, _sglang_temperature, note="below 1e-6 greedy"),
        "top_k": Native("top_k", -1, _top_k, note="off: -1; with top-p both are taken from the unfiltered mass"),
        "top_p": Native("top_p", 1.0, note="over the unfiltered mass"),
        "min_p": Native("min_p", 0.0, note="after them"),
        "repetition_penalty": Native("repetition_penalty", 1.0, note="output only"),
        "max_tokens": Native("max_new_tokens", 128, note="128 when left out"),
        "min_tokens": Native("min_new_tokens", 0, note="masks end tokens; needs a tokenizer"),
        "stop_token_ids": Native("stop_token_ids", (), _sglang_stops, note="the same, unless ignore_eos", write=list),
        "ignore_eos": Native("ignore_eos", False, note="disables stop_token_ids too"),
    },
    "hf": {
        "temperature": Native("temperature", 1.0),
        "top_k": Native("top_k", -1, _top_k),
        "top_p": Native("top_p", 1.0),
        "min_p": Native("min_p", 0.0),
        "repetition_penalty": Native("repetition_penalty", 1.0),
        "max_tokens": Native("max_new_tokens", 20),
        "min_tokens": Native("min_new_tokens", 0),
        "stop_token_ids": Native("stop_token_ids", (), _stops, write=list),
        "ignore_eos": Native("ignore_eos", False),
    },
}


# What our own mapping always gives beside the canonical parameters.
ALWAYS: dict[str, dict[str, Any]] = {"sglang": {"skip_special_tokens": False}}


def table(part: str, engine: str) -> Mapping[str, Native]:
    """The native arguments of an engine by canonical name: ours from here, others' from their spec; {} of an engine
    that is not known."""
    ours = (ENGINE if part == "engine" else SAMPLING).get(engine)
    spec = registry.find(engine) if ours is None else None
    return ours or ({} if spec is None else getattr(spec, f"{part}_arguments"))


def sampling_arguments(backend: str, sampling: Sampling) -> dict[str, Any]:
    """Native sampling arguments of our own mapping, as the engine's own sampler is called with. The embedded engine
    names them as Transformers' generation does."""
    native = {one.name: one.write(getattr(sampling, name)) for name, one in table("sampling", backend).items()}
    return native | ALWAYS.get(backend, {})


def engine_given(backend: str, native: Values) -> dict[str, Any]:
    """Canonical engine parameters that `native` amounts to; None where the engine would decide by itself."""
    return {name: argument.given(native) for name, argument in table("engine", backend).items()}


def sampling_given(backend: str, native: Values, defaults: Values | None = None) -> dict[str, Any]:
    """Canonical sampling parameters that `native` amounts to. `defaults`: native ones that the engine itself fills in
    for what is left out, such as those of a generation_config.json that it reads."""
    said = {**(defaults or {}), **{name: value for name, value in native.items() if value is not None}}
    return {name: argument.given(said) for name, argument in table("sampling", backend).items()}


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
