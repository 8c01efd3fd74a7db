"""The table of canonical parameters: one entry says everything about one that holds in every engine.

Those of sampling stand at their settings (`scenarios.settings.Sampling`), those of an engine here; an engine's own
names, and what values mean in it, stand in its folder. Configuration, mapping, the search for dropped parameters, the
fits, the checks and docs/reference/parameters.md are made from the table. Standard library only: the judge uses it too.
"""

from __future__ import annotations

from scenarios.engines.parameter import Axis, Parameter, entries
from scenarios.settings import CoupledSampling, Sampling

SAMPLING = entries(Sampling)

ENGINE: tuple[Parameter, ...] = (
    Parameter(
        "dtype", "engine", "data type", "auto is another type in each engine: always explicit",
        other=lambda value: "bfloat16" if value != "bfloat16" else "float32",
    ),
    Parameter(
        "seed", "engine", "engine seed", "unmapped, a run does not repeat",
        low=0, high=2**32 - 1,  # what numpy takes, which both engines seed
    ),
    Parameter(
        "max_model_len", "engine", "context",
        "silent shortening: 1024 + 1024 in 2048 gives 1024 in vLLM and 1022 in SGLang",
        low=2, other=lambda value: value // 2, more=True,
    ),
    Parameter(
        "enforce_eager", "engine", "eager", "disable_cuda_graph is enforce_eager itself, not its negation",
    ),
    Parameter(
        "graph_padding", "engine", "graph padding", "it has nothing to do with prefix caching",
        results=False, asked=False,
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
        low=0.01, high=1, other=lambda value: value / 2,
    ),
    Parameter(
        "kv_cache_tokens", "engine", "KV pool", "too small, an engine cuts samples short or preempts them",
        low=128, other=lambda value: value * 2, more=True,
    ),
    Parameter(
        "generation_config", "engine", "generation_config.json",
        "a temperature or top_p of the model's file leaks into the run", asked=False,
    ),
    Parameter("kv_cache_dtype", "engine", "KV data type", "SGLang knows no fp8", asked=False),
)  # fmt: skip

_SUBTRACTED = Axis((-1.0, -0.5, -0.2, 0.1, 0.2, 0.5, 1.0, 1.5), step=0.1, least=-5.0, most=5.0, turn=5)
# Penalties on tokens that occurred. Nobody asks for the last two, but an engine's defaults may bring them.
PENALTIES: tuple[Parameter, ...] = (
    *(one for one in SAMPLING if one.name == "repetition_penalty"),
    Parameter("presence_penalty", "sampling", "presence penalty", "", off=0.0, asked=False, axis=_SUBTRACTED),
    Parameter("frequency_penalty", "sampling", "frequency penalty", "", off=0.0, asked=False, axis=_SUBTRACTED),
)
BY_NAME = {one.name: one for one in (*ENGINE, *SAMPLING)}
FILTERS = tuple(sorted((one for one in SAMPLING if one.place), key=lambda one: one.place))
COUPLED = tuple(one.name for one in entries(CoupledSampling))
DRAWN = tuple(one for one in SAMPLING if one.draws)
# What fits seek beside the penalties, in the order in which they are tried.
FITTED = tuple(
    sorted(
        (one for one in SAMPLING if one.axis is not None and one not in PENALTIES),
        key=lambda one: one.axis.turn if one.axis is not None else 0,
    )
)
AXES = {one.name: one.axis for one in (*FITTED, *PENALTIES) if one.axis is not None}


def filters(sampling: Sampling) -> bool:
    """Do these parameters take tokens away before one is drawn?"""
    return any(one.restricts(getattr(sampling, one.name)) for one in FILTERS)
