"""vLLM's own parameters: their names, what values mean, what our mapping passes, what it refuses.

Source: vLLM 0.32.0 as installed. Standard library only, because the judge reads it too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scenarios.engines.native import (
    NUMPY_SEEDS,
    Native,
    Values,
    biases,
    dtype,
    ids,
    seed_up_to,
    switch,
    texts,
    together,
    top_k,
    whole,
)

if TYPE_CHECKING:
    from scenarios.settings import Mode, Sampling

CPU_BLOCK = 32  # tokens per KV block on a CPU: the smallest size that its backend prefers


def _temperature(value: Any, native: Values) -> float:
    """Return the effective temperature: vLLM raises values between 0 and 0.01 to 0.01; only 0 is greedy
    (sampling_params.py).
    """
    return max(float(value), 0.01) if value else 0.0


SPELLINGS = {  # engine/arg_utils.py; -O3 and -O 3: utils/argparse_utils.py
    "-q": "quantization", "-O": "optimization_level", "-n": "nnodes", "-r": "node_rank",
    "-tp": "tensor_parallel_size", "-pp": "pipeline_parallel_size", "-ep": "enable_expert_parallel",
    "-dcp": "decode_context_parallel_size", "-pcp": "prefill_context_parallel_size",
    "-dp": "data_parallel_size", "-dpn": "data_parallel_rank", "-dpr": "data_parallel_start_rank",
    "-dpl": "data_parallel_size_local", "-dpa": "data_parallel_address", "-dpp": "data_parallel_rpc_port",
    "-dpb": "data_parallel_backend", "-dph": "data_parallel_hybrid_lb", "-dpe": "data_parallel_external_lb",
    "-dpm": "data_parallel_multi_port_external_lb", "-sc": "speculative_config", "-dc": "diffusion_config",
    "-cc": "compilation_config", "-ac": "attention_config",
}  # fmt: skip
# What `converts` strings: vLLM's configuration is made by pydantic. `EngineArgs.create_engine_config` of 0.32.0 takes
# "64" for each of these, but raises TypeError for max_num_seqs, which it compares before.
ENGINE = {
    "dtype": Native("dtype", "auto", dtype, note="auto: bfloat16 of a float32 checkpoint on a CPU"),
    "seed": Native("seed", 0, note="0 when left out", rejects=seed_up_to(NUMPY_SEEDS), converts=whole),
    "max_model_len": Native("max_model_len", note="stops at prompt + response = max_model_len", converts=whole),
    "enforce_eager": Native("enforce_eager", False, note="no CUDA graphs and no compilation", converts=switch),
    "prefix_caching": Native("enable_prefix_caching", True, note="on unless switched off", converts=switch),
    "chunked_prefill": Native("enable_chunked_prefill", True, note="a flag", converts=switch),
    "max_num_seqs": Native("max_num_seqs", note="sequences in one batch"),
    "tensor_parallel": Native("tensor_parallel_size", 1, note="workers", converts=whole),
    # v1/worker/gpu_worker.py of 0.32: the KV pool is what the others leave of it.
    "memory_fraction": Native(
        "gpu_memory_utilization",
        note="the executor's whole share of the accelerator: weights, activations, CUDA graphs and KV pool",
        converts=float,
    ),
    "kv_cache_tokens": Native(
        "num_gpu_blocks_override",
        read=lambda blocks, native: blocks * (native.get("block_size") or CPU_BLOCK),
        note="blocks times their size",
        write=lambda tokens: -(-tokens // CPU_BLOCK),
        converts=whole,
    ),
    "generation_config": Native(
        "generation_config",
        True,
        lambda source, _: source != "vllm",
        note='fills in what a request leaves out, unless "vllm"',
        write=lambda read: "auto" if read else "vllm",
    ),
}
# What vLLM does where it has no argument for a parameter, or none that a mapping sets.
WITHOUT_ARGUMENT = {"graph_padding": "no such parameter", "kv_cache_dtype": "auto, fp8, fp8_e5m2"}

SAMPLING = {
    "temperature": Native(
        "temperature",
        1.0,
        _temperature,
        note="between 0 and 0.01 it becomes 0.01; 0 is greedy",
        special={0.0: "0 is greedy sampling (sampling_params.py)", 2.0: "2 is the largest (sampling_params.py)"},
    ),
    "top_k": Native(
        "top_k",
        -1,
        top_k,
        note="off: 0 or -1; before top-p, which is over what top-k leaves",
        write=lambda value: max(value, 0),
        special=dict.fromkeys((0, -1), "0 and -1 take every token (sampling_params.py)"),
    ),
    "top_p": Native("top_p", 1.0, note="over the renormalised top-k"),
    "min_p": Native("min_p", 0.0, note="before top-k and top-p"),
    "repetition_penalty": Native(
        "repetition_penalty",
        1.0,
        note="prompt and output",
        special={0.5: "below 1 it encourages repetition (sampling_params.py)"},
    ),
    "max_tokens": Native("max_tokens", 16, note="16 when left out"),
    "min_tokens": Native("min_tokens", 0, note="masks end tokens and holds stop strings back"),
    "stop_token_ids": Native("stop_token_ids", (), ids, note="beside the model's own ends", write=list),
    "ignore_eos": Native("ignore_eos", False, note="explicit stop_token_ids still stop"),
}

# What a mapping from or to another engine must also carry over.
CARRIED = {
    "model": Native("model"),
    "tokenizer": Native("tokenizer"),
    "skip_tokenizer": Native("skip_tokenizer_init", False, note="ids only", converts=switch),
    "trust_remote_code": Native("trust_remote_code", False, converts=switch),
    "kv_cache_dtype": Native(
        "kv_cache_dtype",
        "auto",
        lambda value, native: "fp8_e4m3" if value == "fp8" else dtype(value, native),
        note="fp8 is fp8_e4m3",
        write=lambda value: "fp8" if value == "fp8_e4m3" else value,
    ),
    "request_seed": Native("seed", note="sample i of a request gets seed + i"),
    "samples": Native("n", 1),
    "stop": Native("stop", (), texts, write=list),
    "keep_stop": Native("include_stop_str_in_output", False),
    "skip_special_tokens": Native("skip_special_tokens", True),
    "presence_penalty": Native("presence_penalty", 0.0),
    "frequency_penalty": Native("frequency_penalty", 0.0),
    "bad_words": Native("bad_words", (), texts, write=list),
    "logit_bias": Native("logit_bias", {}, biases),
}


def engine(requested: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of `vllm.LLM` for `engine_asked`."""
    arguments: dict[str, Any] = {
        "model": requested["model"],
        "dtype": requested["dtype"],
        "seed": requested["seed"],
        "enforce_eager": requested["enforce_eager"],
        "max_model_len": requested["max_model_len"],
        "max_num_seqs": requested["max_num_seqs"],
        "enable_prefix_caching": requested["prefix_caching"],
        "enable_chunked_prefill": requested["chunked_prefill"],
        "tensor_parallel_size": requested["tensor_parallel"],
        "generation_config": "vllm",  # never sampling defaults from the model's generation_config.json
    }
    if requested["device"] == "cpu":
        arguments["num_gpu_blocks_override"] = -(-requested["kv_cache_tokens"] // CPU_BLOCK)
    else:
        arguments["gpu_memory_utilization"] = requested["memory_fraction"]
    return arguments


def machine(requested: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments that the harness itself needs of `vllm.LLM`; the mapping's own values take precedence."""
    arguments: dict[str, Any] = {
        "disable_log_stats": False,
        # raw_logprobs is today's default; set explicitly because every comparison depends on it
        "logprobs_mode": "raw_logprobs",
    }
    if requested["sleep_level"] and requested["device"] != "cpu":  # refused on a CPU, where sleep is bookkeeping
        arguments["enable_sleep_mode"] = True
    if requested["device"] == "cpu":
        # With the CPU default of 128 tokens per block, a short prefix would never be reused.
        arguments["block_size"] = CPU_BLOCK
        arguments["num_gpu_blocks_override"] = -(-requested["kv_cache_tokens"] // CPU_BLOCK)
        arguments["max_num_batched_tokens"] = max(2048, requested["max_model_len"])
    return arguments


def refusal(s: Sampling, mode: Mode, ours: bool) -> str:
    """Return why vLLM cannot sample this faithfully; empty where it can."""
    if mode != "native" or not ours:
        return ""
    if 0.0 < s.temperature < 0.01:
        return f"vLLM raises sampling.temperature = {s.temperature} to 0.01; use 0 (greedy) or at least 0.01"
    if s.min_p > 0.0 and s.top_p < 1.0:
        return "vLLM applies min-p before top-p, the canonical order is top-p first; use one of them"
    return ""


def unlike(values: Values) -> dict[str, str]:
    """Return canonical parameters that mean something else in vLLM's own sampler: name -> what."""
    if values["min_p"] > 0.0 and values["top_p"] < 1.0:
        return {together("min_p", "top_p"): "min-p before top-p, not after it"}
    return {}
