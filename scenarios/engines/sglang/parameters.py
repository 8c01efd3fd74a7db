"""SGLang's own parameters: their names, what values mean, what our mapping passes, what it refuses.

Source: SGLang 0.5.23 as installed. Standard library only, because the judge reads it too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scenarios.engines.native import (
    NUMPY_SEEDS,
    Native,
    Values,
    biases,
    dtype,
    negated,
    opposite,
    seed_up_to,
    texts,
    together,
    top_k,
)

if TYPE_CHECKING:
    from scenarios.settings import Mode, Sampling

KEEPS = 2  # SGLang answers at most context - prompt - 2 tokens (managers/scheduler.py)
# SGLang refuses inputs of min(context, KV pool) - 6 tokens or more: one token of a request and five of its input are
# reserved (managers/tp_worker.py, `get_worker_info`), and an input must be shorter than that (managers/utils.py).
REFUSES = 6
# SGLang answers at most context - prompt - 2 tokens and rejects prompts longer than context - 6. With this much more
# context than requested, its own limit never applies.
CONTEXT_SLACK = KEEPS + REFUSES
CHUNK = 8192  # tokens of a prefill chunk where our mapping enables chunks


def _temperature(value: Any, native: Values) -> float:
    return 0.0 if value < 1e-6 else float(value)


def _stop_ids(value: Any, native: Values) -> tuple[int, ...]:
    """Return the ids that stop a sample: none with SGLang's ignore_eos (schedule_batch.py,
    `_check_token_based_finish`).
    """
    return () if native.get("ignore_eos") else tuple(value)


SPELLINGS = {  # srt/arg_groups/fields; --tp, --pp and --dp as argparse completes them
    "--model": "model_path", "--speculative-draft-model": "speculative_draft_model_path",
    "--context-bucket": "cuda_graph_prefill_max_context", "--enable-hicache": "enable_hierarchical_cache",
    "--tensor-parallel-size": "tp_size", "--tp": "tp_size", "--pipeline-parallel-size": "pp_size", "--pp": "pp_size",
    "--data-parallel-size": "dp_size", "--dp": "dp_size", "--expert-parallel-size": "ep_size", "--ep": "ep_size",
    "--decode-context-parallel-size": "dcp_size", "--attention-data-parallel-size": "attn_dp_size",
    "--attention-context-parallel-size": "attn_cp_size", "--moe-data-parallel-size": "moe_dp_size",
    "--nccl-init-addr": "dist_init_addr",
}  # fmt: skip
ENGINE = {
    "dtype": Native("dtype", "auto", dtype, note="auto: float16"),
    "seed": Native("random_seed", note="random when left out", rejects=seed_up_to(NUMPY_SEEDS)),
    "max_model_len": Native(
        "context_length",
        read=lambda context, _: context - KEEPS,
        note="answers min(asked, context - prompt - 2, room in the KV pool); a prompt of context - 6 or more is "
        "rejected",
        write=lambda context: context + CONTEXT_SLACK,
    ),
    "enforce_eager": Native("disable_cuda_graph", False, note="no CUDA graphs"),
    "graph_padding": Native(
        "disable_cuda_graph_padding",
        True,
        negated,
        note="batches are padded to the size of a captured graph",
        write=opposite,
    ),
    "prefix_caching": Native(
        "disable_radix_cache", True, negated, note="on unless disable_radix_cache", write=opposite
    ),
    "chunked_prefill": Native(
        "chunked_prefill_size",
        True,
        lambda size, _: size > 0,
        note="a number of tokens; -1 is off",
        write=lambda on: CHUNK if on else -1,
    ),
    "max_num_seqs": Native("max_running_requests", note="requests that run at once"),
    "tensor_parallel": Native("tp_size", 1, note="workers"),
    # mem_cache/kv_cache_configurator.py of 0.5.23: what is free before the weights are loaded is multiplied.
    "memory_fraction": Native(
        "mem_fraction_static", note="weights and KV pool only; activations and CUDA graphs take what it leaves"
    ),
    "kv_cache_tokens": Native("max_total_tokens", note="tokens"),
    "generation_config": Native(
        "sampling_defaults",
        True,
        lambda source, _: source == "model",
        note="fills it in at the OpenAI endpoint only",
        write=lambda read: "model" if read else "openai",
    ),
}
# What SGLang does where it has no argument for a parameter, or none that a mapping sets.
WITHOUT_ARGUMENT = {"kv_cache_dtype": "auto, fp8_e4m3, fp8_e5m2"}

SAMPLING = {
    "temperature": Native(
        "temperature",
        1.0,
        _temperature,
        note="below 1e-6 greedy",
        special={0.0: "0 is greedy sampling (sampling_params.py)", 2.0: "2 is the largest of the OpenAI API"},
    ),
    "top_k": Native(
        "top_k",
        -1,
        top_k,
        note="off: -1; with top-p both are taken from the unfiltered mass",
        rejects=lambda value: "top_k must be -1 (off) or at least 1" if value == 0 else "",
        special={-1: "-1 takes every token (sampling_params.py)"},
    ),
    "top_p": Native("top_p", 1.0, note="over the unfiltered mass"),
    "min_p": Native("min_p", 0.0, note="after them"),
    "repetition_penalty": Native(
        "repetition_penalty", 1.0, note="output only", special={2.0: "2 is the largest (sampling_params.py)"}
    ),
    "max_tokens": Native("max_new_tokens", 128, note="128 when left out"),
    "min_tokens": Native("min_new_tokens", 0, note="masks end tokens; needs a tokenizer"),
    "stop_token_ids": Native("stop_token_ids", (), _stop_ids, note="the same, unless ignore_eos", write=list),
    "ignore_eos": Native("ignore_eos", False, note="disables stop_token_ids too"),
}
# What a mapping from or to another engine must also carry over.
CARRIED = {
    "model": Native("model_path"),
    "tokenizer": Native("tokenizer_path"),
    "skip_tokenizer": Native("skip_tokenizer_init", False, note="ids only, no stop strings and no least length"),
    "trust_remote_code": Native("trust_remote_code", False),
    "kv_cache_dtype": Native(
        "kv_cache_dtype",
        "auto",
        dtype,
        note="fp8_e4m3 or fp8_e5m2",
        rejects=lambda value: "kv_cache_dtype is fp8_e4m3 or fp8_e5m2, not fp8" if value == "fp8" else "",
    ),
    "request_seed": Native("sampling_seed", note="ignored unless deterministic, then shared by a request's samples"),
    "samples": Native("n", 1),
    "stop": Native("stop", (), texts, note="needs a tokenizer", write=list),
    "keep_stop": Native("no_stop_trim", False),
    "skip_special_tokens": Native("skip_special_tokens", True),
    "presence_penalty": Native("presence_penalty", 0.0),
    "frequency_penalty": Native("frequency_penalty", 0.0),
    "logit_bias": Native("logit_bias", {}, biases),
}
# What our own mapping always passes, besides the canonical parameters.
ALWAYS = {"skip_special_tokens": False}


def engine(requested: dict[str, Any], *, longest_context: int) -> dict[str, Any]:
    """Return the arguments of `sglang.Engine` for `engine_asked`. `longest_context`: the model's
    max_position_embeddings.
    """
    arguments: dict[str, Any] = {
        "model_path": requested["model"],
        "dtype": requested["dtype"],
        "random_seed": requested["seed"],
        "disable_cuda_graph": requested["enforce_eager"],
        "disable_radix_cache": not requested["prefix_caching"],
        "max_running_requests": requested["max_num_seqs"],
        "chunked_prefill_size": CHUNK if requested["chunked_prefill"] else -1,
        "context_length": min(requested["max_model_len"] + CONTEXT_SLACK, longest_context),
        "tp_size": requested["tensor_parallel"],
        "sampling_defaults": "openai",  # never sampling defaults from the model's generation_config.json
    }
    if requested["device"] == "cpu":
        arguments["max_total_tokens"] = requested["kv_cache_tokens"]
    else:
        # SGLang's fraction covers weights and KV pool, vLLM's the whole executor, so equal numbers give different KV
        # pools.
        arguments["mem_fraction_static"] = requested["memory_fraction"]
    return arguments


def machine(requested: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments that the harness itself needs of `sglang.Engine`; the mapping's own values take
    precedence.
    """
    arguments: dict[str, Any] = {"disable_overlap_schedule": True, "log_level": "error"}
    if requested["sleep_level"] and requested["device"] != "cpu":  # there is no memory saver on a CPU
        arguments["enable_memory_saver"] = True
        arguments["enable_weights_cpu_backup"] = requested["sleep_level"] == 1
    if requested["device"] == "cpu":
        arguments |= {
            "attention_backend": "torch_native",
            "sampling_backend": "pytorch",
            "max_total_tokens": requested["kv_cache_tokens"],
        }
    return arguments


def refusal(s: Sampling, mode: Mode, ours: bool) -> str:
    """Return why SGLang cannot sample this faithfully; empty where it can."""
    if not ours:
        return ""
    if s.ignore_eos and s.stop_token_ids:
        return "SGLang's ignore_eos disables sampling.stop_token_ids too; vLLM's does not"
    if mode != "native":
        return ""
    if s.top_k > 0 and s.top_p < 1.0:
        return (
            "SGLang applies top-p over the unfiltered mass (joint), the canonical meaning is top-k, renormalise, "
            "top-p; use one of them"
        )
    if s.repetition_penalty != 1.0:
        return "SGLang's repetition penalty covers the output only, the canonical one covers prompt and output"
    return ""


def unlike(values: Values) -> dict[str, str]:
    """Return canonical parameters that mean something else in SGLang's own sampler: name -> what."""
    differences = {}
    if values["top_k"] > 0 and values["top_p"] < 1.0:
        differences[together("top_k", "top_p")] = (
            "joint: top-p over the unfiltered mass, not over the renormalised top-k"
        )
    if values["repetition_penalty"] != 1.0:
        differences["repetition_penalty"] = "covers the output only, not prompt and output"
    return differences


def most_scored(resolved: Values) -> int:
    """Return how many tokens of a sequence it scores at most, by what it resolved; 0 where it does not tell."""
    limits = [int(resolved.get(name) or 0) for name in ("context_length", "kv_cache_tokens")]
    return max(0, min(filter(None, limits), default=0) - REFUSES - 1)
