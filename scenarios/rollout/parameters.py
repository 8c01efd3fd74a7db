"""Canonical parameters to each engine's own, in one place; what has no faithful image is refused, never dropped.
 The canonical meaning is the one of `scenarios.settings`: top-k, then top-p over the renormalised top-k, then min-p
relative to the largest remaining probability; a repetition penalty covers prompt and output; `max_model_len` bounds
prompt + response. Sources: vLLM 0.32.0 and SGLang 0.5.23 as installed; each refusal names the difference.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from scenarios.rollout.engine import ParameterRefused
from scenarios.settings import Engine, Mode, Sampling

# SGLang answers at most context - prompt - 2 tokens and rejects prompts longer than context - 6
# (managers/scheduler.py): with this much more context than asked, its limit is never the one that binds.
SGLANG_CONTEXT_SLACK = 8
CPU_BLOCK = 32  # tokens a KV block of vLLM on a CPU: the smallest that its backend prefers


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


def check_sampling(engine: str, sampling: Sampling, mode: Mode) -> None:
    """Refuse what `engine` cannot sample faithfully in `mode`; raises ParameterRefused."""
    s = sampling
    if mode != "native":
        if s.repetition_penalty != 1.0:
            raise ParameterRefused(
                f"sampling.repetition_penalty = {s.repetition_penalty} is refused in {mode} mode: engines apply it at "
                "different "
                "points (vLLM's V1 runner after the harness's noise, SGLang before); use --mode native"
            )
        if mode == "coupled" and s.temperature == 0.0:
            raise ParameterRefused("sampling.temperature = 0 is refused in coupled mode: use --mode greedy")
        return
    if engine == "hf" and s.repetition_penalty != 1.0:
        raise ParameterRefused("the embedded Transformers engine has no repetition penalty")
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
        if s.ignore_eos and s.stop_token_ids:
            raise ParameterRefused("SGLang's ignore_eos disables sampling.stop_token_ids too; vLLM's does not")


def vllm_engine(model: str, dtype: str, engine: Engine, *, device: str) -> dict[str, Any]:
    """Arguments of `vllm.LLM`."""
    arguments: dict[str, Any] = {
        "model": model,
        "dtype": dtype,
        "seed": engine.seed,
        "enforce_eager": engine.enforce_eager,
        "max_model_len": engine.max_model_len,
        "max_num_seqs": engine.max_num_seqs,
        "enable_prefix_caching": engine.prefix_caching,
        "enable_chunked_prefill": engine.chunked_prefill,
        "tensor_parallel_size": engine.tensor_parallel,
        "generation_config": "vllm",  # never sampling defaults from the model's generation_config.json
        "disable_log_stats": False,
        # raw_logprobs is the default today; asked explicitly because everything compares them
        "logprobs_mode": "raw_logprobs",
    }
    if device == "cpu":
        # The CPU default of 128 tokens a block would never reuse a short prefix.
        arguments["block_size"] = CPU_BLOCK
        arguments["num_gpu_blocks_override"] = -(-engine.kv_cache_tokens // CPU_BLOCK)
        arguments["max_num_batched_tokens"] = max(2048, engine.max_model_len)
    else:
        arguments["gpu_memory_utilization"] = engine.memory_fraction
    return arguments


def sglang_engine(model: str, dtype: str, engine: Engine, *, device: str, longest_context: int) -> dict[str, Any]:
    """Arguments of `sglang.Engine`. `longest_context`: the model's own max_position_embeddings."""
    arguments: dict[str, Any] = {
        "model_path": model,
        "dtype": dtype,
        "random_seed": engine.seed,
        "disable_cuda_graph": engine.enforce_eager,
        "disable_radix_cache": not engine.prefix_caching,
        "max_running_requests": engine.max_num_seqs,
        "chunked_prefill_size": 8192 if engine.chunked_prefill else -1,
        "context_length": min(engine.max_model_len + SGLANG_CONTEXT_SLACK, longest_context),
        "tp_size": engine.tensor_parallel,
        "sampling_defaults": "openai",  # never sampling defaults from the model's generation_config.json
        "disable_overlap_schedule": True,
        "log_level": "error",
    }
    if device == "cpu":
        arguments |= {
            "device": "cpu",
            "attention_backend": "torch_native",
            "sampling_backend": "pytorch",
            "max_total_tokens": engine.kv_cache_tokens,
        }
    else:
        # SGLang's fraction counts weights and KV pool only, vLLM's the whole executor: the same number gives different
        # KV pools.
        arguments["mem_fraction_static"] = engine.memory_fraction
    return arguments


def vllm_sampling(sampling: Sampling, mode: Mode) -> dict[str, Any]:
    """Arguments of `vllm.SamplingParams`, without the per-request ones."""
    native: dict[str, Any] = {
        "min_tokens": sampling.min_tokens,
        "stop_token_ids": list(sampling.stop_token_ids),
        "ignore_eos": sampling.ignore_eos,
        "logprobs": 0,  # the drawn token's own log-probability
        "detokenize": False,
    }
    if mode != "native":
        return native | {"temperature": 0.0}
    return native | {
        "temperature": sampling.temperature,
        "top_k": max(sampling.top_k, 0),
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "repetition_penalty": sampling.repetition_penalty,
    }


def sglang_sampling(sampling: Sampling, mode: Mode) -> dict[str, Any]:
    """SGLang's `sampling_params`, without the per-request ones."""
    native: dict[str, Any] = {
        "min_new_tokens": sampling.min_tokens,
        "stop_token_ids": list(sampling.stop_token_ids),
        "ignore_eos": sampling.ignore_eos,
        "skip_special_tokens": False,
    }
    if mode != "native":
        return native | {"temperature": 0.0}
    return native | {
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "repetition_penalty": sampling.repetition_penalty,
    }


def canonical(sampling: Sampling) -> dict[str, Any]:
    return asdict(sampling)
