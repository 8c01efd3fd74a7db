"""The table of canonical parameters: one entry says everything about one that holds in every engine.

Types and defaults are those of `scenarios.settings`; native names, what their values mean and each engine's notes are
in `scenarios.engines.given`, one table an engine. Configuration, the search for dropped parameters, the fits, the
checks and docs/reference/parameters.md are made from the two. Standard library only: the judge uses it too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from scenarios.engines import given
from scenarios.settings import Sampling


def _next(value: Any) -> Any:
    """Another value of a switch or of a count."""
    return not value if isinstance(value, bool) else value + 1


@dataclass(frozen=True)
class Parameter:
    """`low`, `high`: the least and the largest value; `positive`: above 0. `off`: the value that switches it off.
    `other`: another value, which must move the native arguments. `draws`: it changes which token is drawn, and no raw
    log-probability. `place`: in the order in which filters are applied, from 1; 0: no filter. `coupled`: the coupled
    draw applies it, so that the engine is not given it. `trap`: how engines differ in it.

    `more`: being given more than was asked takes nothing away. `results`: another value may change results, not only
    speed. `asked`: False where no setting asks for it, and engines are left to their defaults.
    """

    name: str
    part: Literal["engine", "sampling"]
    concept: str
    trap: str
    low: float | None = None
    high: float | None = None
    positive: bool = False
    off: Any = None
    other: Callable[[Any], Any] = _next
    draws: bool = False
    place: int = 0
    coupled: bool = False
    more: bool = False
    results: bool = True
    asked: bool = True

    def native(self, engine: str) -> str:
        """The engine's own name of it; empty where it has none."""
        argument = self._arguments.get(engine, {}).get(self.name)
        return argument.name if argument is not None else ""

    def note(self, engine: str) -> str:
        """What it means in this engine, where that is worth a word."""
        argument = self._arguments.get(engine, {}).get(self.name)
        return argument.note if argument is not None else given.WITHOUT_ARGUMENT.get(engine, {}).get(self.name, "")

    def restricts(self, value: float) -> bool:
        """Does a filter of this value take tokens away? Engines write a top-k that is off as -1 or 0."""
        return bool(value < self.off if self.off > 0 else value > 0)

    @property
    def _arguments(self) -> dict[str, dict[str, given.Native]]:
        return given.ENGINE if self.part == "engine" else given.SAMPLING


SAMPLING: tuple[Parameter, ...] = (
    Parameter(
        "temperature", "sampling", "temperature", "1e-7: one samples, the other is greedy",
        low=0, other=lambda value: value / 2 if value else 0.5, draws=True, coupled=True,
    ),
    Parameter(
        "top_k", "sampling", "top-k", "joint against sequential: another support",
        off=-1, other=lambda value: 7 if value != 7 else 8, draws=True, place=1, coupled=True,
    ),
    Parameter(
        "top_p", "sampling", "top-p", "as for top-k",
        low=1e-6, high=1, off=1.0, other=lambda value: value / 2, draws=True, place=2, coupled=True,
    ),
    Parameter(
        "min_p", "sampling", "min-p", "together with top-p, another support",
        low=0, high=1, off=0.0, other=lambda value: 0.1 if value != 0.1 else 0.2, draws=True, place=3, coupled=True,
    ),
    Parameter(
        "repetition_penalty", "sampling", "repetition penalty", "the prompt is not penalised in SGLang",
        positive=True, off=1.0, other=lambda value: value + 0.25, draws=True,
    ),
    Parameter("max_tokens", "sampling", "most tokens", "other lengths when left out", low=1),
    Parameter("min_tokens", "sampling", "fewest tokens", "easily dropped: it has another name", low=0),
    Parameter(
        "stop_token_ids", "sampling", "tokens that stop",
        "the engines read the model's own ends from different files: compare what they resolved",
        other=lambda value: (*value, 1 + max(value, default=0)),
    ),
    Parameter("ignore_eos", "sampling", "ignore the end", "stops that were asked for are gone"),
)  # fmt: skip

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

BY_NAME = {one.name: one for one in (*ENGINE, *SAMPLING)}
FILTERS = tuple(sorted((one for one in SAMPLING if one.place), key=lambda one: one.place))
COUPLED = tuple(one.name for one in SAMPLING if one.coupled)
DRAWN = tuple(one for one in SAMPLING if one.draws)


def filters(sampling: Sampling) -> bool:
    """Do these parameters take tokens away before one is drawn?"""
    return any(one.restricts(getattr(sampling, one.name)) for one in FILTERS)
