"""Canonical parameters to each engine's own, in one place; what has no faithful image is refused, never dropped.

The canonical meaning is the one of `scenarios.settings`: top-k, then top-p over the renormalised top-k, then min-p
relative to the largest remaining probability; a repetition penalty covers prompt and output; `max_model_len` bounds
prompt + response. Sources: vLLM 0.32.0 and SGLang 0.5.23 as installed; each refusal names the difference.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from scenarios.engines.canonical import DRAWN, FILTERS
from scenarios.engines.engine import ParameterRefused
from scenarios.engines.given import CPU_BLOCK
from scenarios.settings import Engine, Mode, Sampling

# SGLang answers at most context - prompt - 2 tokens and rejects prompts longer than context - 6
# (managers/scheduler.py): with this much more context than asked, its limit is never the one that binds.
SGLANG_CONTEXT_SLACK = 8


def check_room(longest_prompt: int | None, sampling: Sampling, engine: Engine) -> None:
    """Refuse a context that cannot hold the longest prompt and a whole response; raises ParameterRefused.

    `longest_prompt`: in tokens; None where no tokenizer has counted them yet, and a prompt has a token at least.
    """
    need = (longest_prompt or 1) + sampling.max_tokens
    if need > engine.max_model_len:
        prompt = "even a prompt of one token" if longest_prompt is None else f"the longest prompt, of {longest_prompt},"
        raise ParameterRefused(
            f"engine.max_model_len = {engine.max_model_len} is too short: {prompt} and sampling.max_tokens = "
            f"{sampling.max_tokens} are {need} tokens together; raise engine.max_model_len or lower sampling.max_tokens"
        )


def check_engine(engine: Engine) -> None:
    """Refuse what no engine session can be made of; raises ParameterRefused."""
    if engine.engines != 1:
        raise ParameterRefused(
            f"engine.engines = {engine.engines}: a run drives one engine; only engine.engines = 1 is possible"
        )


def check_sampling(engine: str, sampling: Sampling, mode: Mode, *, ours: bool = True) -> None:
    """Refuse what `engine` cannot sample faithfully in `mode`; raises ParameterRefused.

    `ours`: the mapping is our own. What a user's mapping makes unfaithful is found by the comparison instead.
    """
    s = sampling
    if mode != "native":
        if s.repetition_penalty != 1.0:
            raise ParameterRefused(
                f"sampling.repetition_penalty = {s.repetition_penalty} is refused in {mode} mode: engines apply it at "
                "different points (vLLM's V1 runner after the harness's noise, SGLang before); use --mode native"
            )
        if mode == "coupled" and s.temperature == 0.0:
            raise ParameterRefused("sampling.temperature = 0 is refused in coupled mode: use --mode greedy")
    if ours and engine == "sglang" and s.ignore_eos and s.stop_token_ids:
        raise ParameterRefused("SGLang's ignore_eos disables sampling.stop_token_ids too; vLLM's does not")
    if mode != "native":
        return
    if engine == "hf" and s.repetition_penalty != 1.0:
        raise ParameterRefused("the embedded Transformers engine has no repetition penalty")
    if not ours:
        return
    if engine == "vllm":
        if 0.0 < s.temperature < 0.01:
            raise ParameterRefused(
                f"vLLM raises sampling.temperature = {s.temperature} to 0.01; use 0 (greedy) or at least 0.01"
            )
        if s.min_p > 0.0 and s.top_p < 1.0:
            raise ParameterRefused(
                "vLLM applies min-p before top-p, the canonical order is top-p first; use one of them"
            )
    if engine == "sglang":
        if s.top_k > 0 and s.top_p < 1.0:
            raise ParameterRefused(
                "SGLang applies top-p over the unfiltered mass (joint), the canonical meaning is top-k, renormalise, "
                "top-p; use one of them"
            )
        if s.repetition_penalty != 1.0:
            raise ParameterRefused(
                "SGLang's repetition penalty covers the output only, the canonical one covers prompt and output"
            )


def engine_asked(model: str, dtype: str, engine: Engine, *, device: str) -> dict[str, Any]:
    """What a mapping of engine parameters is asked: the canonical ones, the model's path and the device."""
    asked = {"model": model, "device": device, "dtype": dtype, **asdict(engine)}
    del asked["engines"]  # how many there are is no engine's parameter
    return asked


def canonical_engine(asked: dict[str, Any]) -> dict[str, Any]:
    """What is held against the engine afterwards: without what this device does not use, with what is never asked
    otherwise."""
    unused = {"model", "device", "memory_fraction" if asked["device"] == "cpu" else "kv_cache_tokens"}
    kept = {name: value for name, value in asked.items() if name not in unused}
    return kept | {"generation_config": False, "graph_padding": True}


def vllm_engine(asked: dict[str, Any]) -> dict[str, Any]:
    """Arguments of `vllm.LLM` for `engine_asked`."""
    arguments: dict[str, Any] = {
        "model": asked["model"],
        "dtype": asked["dtype"],
        "seed": asked["seed"],
        "enforce_eager": asked["enforce_eager"],
        "max_model_len": asked["max_model_len"],
        "max_num_seqs": asked["max_num_seqs"],
        "enable_prefix_caching": asked["prefix_caching"],
        "enable_chunked_prefill": asked["chunked_prefill"],
        "tensor_parallel_size": asked["tensor_parallel"],
        "generation_config": "vllm",  # never sampling defaults from the model's generation_config.json
    }
    if asked["device"] == "cpu":
        arguments["num_gpu_blocks_override"] = -(-asked["kv_cache_tokens"] // CPU_BLOCK)
    else:
        arguments["gpu_memory_utilization"] = asked["memory_fraction"]
    return arguments


def vllm_machine(asked: dict[str, Any]) -> dict[str, Any]:
    """What the harness itself needs of `vllm.LLM`, whatever the mapping: used where the mapping says nothing of it."""
    arguments: dict[str, Any] = {
        "disable_log_stats": False,
        # raw_logprobs is the default today; asked explicitly because everything compares them
        "logprobs_mode": "raw_logprobs",
    }
    if asked["device"] == "cpu":
        # The CPU default of 128 tokens a block would never reuse a short prefix.
        arguments["block_size"] = CPU_BLOCK
        arguments["num_gpu_blocks_override"] = -(-asked["kv_cache_tokens"] // CPU_BLOCK)
        arguments["max_num_batched_tokens"] = max(2048, asked["max_model_len"])
    return arguments


def sglang_engine(asked: dict[str, Any], *, longest_context: int) -> dict[str, Any]:
    """Arguments of `sglang.Engine` for `engine_asked`. `longest_context`: the model's own max_position_embeddings."""
    arguments: dict[str, Any] = {
        "model_path": asked["model"],
        "dtype": asked["dtype"],
        "random_seed": asked["seed"],
        "disable_cuda_graph": asked["enforce_eager"],
        "disable_radix_cache": not asked["prefix_caching"],
        "max_running_requests": asked["max_num_seqs"],
        "chunked_prefill_size": 8192 if asked["chunked_prefill"] else -1,
        "context_length": min(asked["max_model_len"] + SGLANG_CONTEXT_SLACK, longest_context),
        "tp_size": asked["tensor_parallel"],
        "sampling_defaults": "openai",  # never sampling defaults from the model's generation_config.json
    }
    if asked["device"] == "cpu":
        arguments["max_total_tokens"] = asked["kv_cache_tokens"]
    else:
        # SGLang's fraction counts weights and KV pool only, vLLM's the whole executor: the same number gives different
        # KV pools.
        arguments["mem_fraction_static"] = asked["memory_fraction"]
    return arguments


def sglang_machine(asked: dict[str, Any]) -> dict[str, Any]:
    """What the harness itself needs of `sglang.Engine`, whatever the mapping: used where the mapping says nothing."""
    arguments: dict[str, Any] = {"disable_overlap_schedule": True, "log_level": "error"}
    if asked["device"] == "cpu":
        arguments |= {
            "attention_backend": "torch_native",
            "sampling_backend": "pytorch",
            "max_total_tokens": asked["kv_cache_tokens"],
        }
    return arguments


def hf_engine(asked: dict[str, Any]) -> dict[str, Any]:
    """Arguments of the embedded engine."""
    names = ("dtype", "seed", "max_model_len", "max_num_seqs")
    return {name: asked[name] for name in names} | {"generation_config": "none"}


def without_draw(native: dict[str, Any], mode: Mode) -> dict[str, Any]:
    """`native` as the engine is called where its own draw is not used: greedily, and in coupled mode without the
    filters that the harness's draw applies itself."""
    if mode == "native":
        return dict(native)
    left_out = {one.name for one in (DRAWN if mode == "coupled" else FILTERS)}
    return {name: value for name, value in native.items() if name not in left_out} | {"temperature": 0.0}
