"""The table of canonical parameters: one entry says everything about a parameter that holds for every engine.

Sampling parameters are defined at their settings (`scenarios.settings.Sampling`), engine parameters here. An engine's
own names, and what values mean in it, are in its folder. Made from the table are: configuration, mapping, the search
for dropped parameters, the fits, the checks and docs/reference/parameters.md. Standard library only, because the
judge uses it too.
"""

from __future__ import annotations

import dataclasses

from scenarios.engines.native import NUMPY_SEEDS
from scenarios.engines.parameter import Axis, Parameter, entries
from scenarios.settings import CoupledSampling, Sampling

SAMPLING = entries(Sampling)

ENGINE: tuple[Parameter, ...] = (
    Parameter(
        "dtype", "engine", "data type", "auto is another type in each engine: always explicit",
        variant=lambda value: "bfloat16" if value != "bfloat16" else "float32",
    ),
    Parameter(
        "seed", "engine", "engine seed", "unmapped, a run does not repeat",
        low=0, high=NUMPY_SEEDS,
    ),
    Parameter(
        "max_model_len", "engine", "context",
        "silent shortening: 1024 + 1024 in 2048 gives 1024 in vLLM and 1022 in SGLang",
        low=2, variant=lambda value: value // 2, more=True,
    ),
    Parameter(
        "enforce_eager", "engine", "eager", "disable_cuda_graph is enforce_eager itself, not its negation",
    ),
    Parameter(
        "graph_padding", "engine", "graph padding", "it has nothing to do with prefix caching",
        results=False, requested=False,
    ),
    Parameter(
        "prefix_caching", "engine", "prefix cache",
        "the negation of SGLang's flag; to be flushed after a weight sync", results=False,
    ),
    Parameter("chunked_prefill", "engine", "chunked prefill", "a flag against a size", results=False),
    Parameter("max_num_seqs", "engine", "concurrency", "other batches round otherwise", low=1, more=True),
    Parameter("tensor_parallel", "engine", "tensor parallelism", "another order of summation", low=1),
    Parameter(
        "memory_fraction", "engine", "memory",
        "copied 1:1, the KV pools differ, and with them what is preempted",
        low=0.01, high=1, variant=lambda value: value / 2, comparable=False,
    ),
    Parameter(
        "kv_cache_tokens", "engine", "KV pool", "too small, an engine cuts samples short or preempts them",
        low=128, variant=lambda value: value * 2, more=True,
    ),
    Parameter(
        "generation_config", "engine", "generation_config.json",
        "a temperature or top_p of the model's file leaks into the run", requested=False,
    ),
    Parameter("kv_cache_dtype", "engine", "KV data type", "SGLang knows no fp8", requested=False),
)  # fmt: skip

_SUBTRACTED = Axis((-1.0, -0.5, -0.2, 0.1, 0.2, 0.5, 1.0, 1.5), step=0.1, least=-5.0, most=5.0, turn=5)
# Penalties on tokens that occurred. No setting asks for the last two, but an engine's defaults may contain them.
PENALTIES: tuple[Parameter, ...] = (
    *(parameter for parameter in SAMPLING if parameter.name == "repetition_penalty"),
    # Both engines refuse values outside of -2 to 2 (sampling_params.py).
    *(
        Parameter(
            f"{kind}_penalty",
            "sampling",
            f"{kind} penalty",
            "",
            low=-2.0,
            high=2.0,
            off=0.0,
            requested=False,
            axis=_SUBTRACTED,
        )
        for kind in ("presence", "frequency")
    ),
)


def _half_more(value: float) -> float:
    return value + 0.5


# Parameters that no scenario has, but that a mapping from one engine to another must carry over or refuse (`harness
# mapping`).
CARRIED: tuple[Parameter, ...] = (
    Parameter(
        "model", "engine", "model", "another model, or none", carried=True, default="org/model",
        variant=lambda value: f"{value}-sft",
    ),
    Parameter(
        "tokenizer", "engine", "tokenizer", "left out, the model's own is read: other ids, other ends", carried=True,
        default="org/tokenizer", variant=lambda value: f"{value}-extended",
    ),
    Parameter(
        "skip_tokenizer", "engine", "no tokenizer",
        "keep the tokenizer and send ids", carried=True,
        default=False,
    ),
    Parameter(
        "trust_remote_code", "engine", "code of the model's folder", "without it such a model does not load",
        carried=True, default=False, results=False,
    ),
    *(dataclasses.replace(parameter, carried=True, default="auto", variant=lambda value: "fp8_e4m3")
      for parameter in ENGINE if parameter.name == "kv_cache_dtype"),
    Parameter(
        "request_seed", "sampling", "request seed",
        "ignored, or the samples of a request are clones",
        carried=True, default=0, low=0, high=2**63 - 1,  # both engines keep it in a tensor of int64
    ),
    Parameter(
        "samples", "sampling", "samples of a request", "dropped: one sample of each prompt", carried=True, default=1,
    ),
    Parameter(
        "stop", "sampling", "stop strings", "samples run on to the end", carried=True, default=(),
        variant=lambda value: (*value, "</s>"),
    ),
    Parameter(
        "keep_stop", "sampling", "stop text in the output", "each engine's name for it is another", carried=True,
        default=False,
    ),
    Parameter(
        "skip_special_tokens", "sampling", "special tokens in the text", "other text, the same ids", carried=True,
        default=True,
    ),
    *(dataclasses.replace(penalty, carried=True, trap="other tokens are drawn", default=0.0, variant=_half_more)
      for penalty in PENALTIES if not penalty.requested),
    Parameter(
        "bad_words", "sampling", "forbidden words", "where an engine has none: refuse, never drop", carried=True,
        default=(), variant=lambda value: (*value, "no"),
    ),
    Parameter(
        "logit_bias", "sampling", "bias of tokens", "other tokens are drawn", carried=True, default={},
        variant=lambda value: {**value, "7": 1.0},
    ),
)  # fmt: skip
BY_NAME = {parameter.name: parameter for parameter in (*ENGINE, *SAMPLING)}


def parameter_of(name: str) -> Parameter:
    """Return the entry of a parameter. One that the table does not have is an argument of no engine."""
    return BY_NAME.get(name) or Parameter(name, "engine", name, "")


FILTERS = tuple(sorted((parameter for parameter in SAMPLING if parameter.place), key=lambda parameter: parameter.place))
COUPLED = tuple(parameter.name for parameter in entries(CoupledSampling))
DRAWN = tuple(parameter for parameter in SAMPLING if parameter.draws)
# What fits search besides the penalties, in the order in which they are tried.
FITTED = tuple(
    sorted(
        (parameter for parameter in SAMPLING if parameter.axis is not None and parameter not in PENALTIES),
        key=lambda parameter: parameter.axis.turn if parameter.axis is not None else 0,
    )
)
AXES = {parameter.name: parameter.axis for parameter in (*FITTED, *PENALTIES) if parameter.axis is not None}


def filters(sampling: Sampling) -> bool:
    """Whether these parameters remove tokens before one is drawn."""
    return any(parameter.restricts(getattr(sampling, parameter.name)) for parameter in FILTERS)
