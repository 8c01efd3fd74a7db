"""What settings of a job mean, in terms that all frameworks share, so that two commands can be compared.

Each framework's folder maps its settings to these terms, with their unit and the default.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from harness.frameworks.settings import Settings
from reports.doctor_model import Severity
from scenarios.engines.parameter import Parameter

ENGINE = "engine"


@dataclass(frozen=True)
class Concept:
    """A term, and what a different value of it does to a run.

    `severity`: error if the runs are no longer the same, warning if they may differ, unknown if that is not known, info
    if it differs on purpose or nothing that is compared changes.
    """

    severity: Severity
    does: str


CONCEPTS: Mapping[str, Concept] = {
    ENGINE: Concept("info", "the engine that draws: what a comparison of engines changes on purpose"),
    "prompts a step": Concept("error", "other prompts in each step, and another number of updates"),
    "samples a prompt": Concept("error", "groups of another size: other baselines and advantages"),
    "samples an update": Concept("error", "an update averages over another number of samples, and a step has others"),
    "samples a micro-batch": Concept("warning", "gradients are added up in other parts: they round otherwise"),
    "samples a scoring batch": Concept("warning", "log-probabilities come from other batches and round otherwise"),
    "passes over a step": Concept("error", "another number of updates on the same samples"),
    "steps or epochs": Concept("error", "one of the runs is longer"),
    "prompt length": Concept("error", "prompts are cut, or left out, at another length"),
    "response length": Concept("error", "samples are cut at another length: other rewards"),
    "context": Concept("error", "samples end earlier in the one with less room"),
    "temperature": Concept("error", "tokens are drawn from another distribution"),
    "top-p": Concept("error", "tokens are drawn from another distribution"),
    "top-k": Concept("error", "tokens are drawn from another distribution"),
    "min-p": Concept("error", "tokens are drawn from another distribution"),
    "repetition penalty": Concept("error", "tokens are drawn from another distribution"),
    "learning rate of the actor": Concept("error", "updates of another size"),
    "learning rate of the critic": Concept("error", "updates of another size"),
    "KL coefficient": Concept("error", "another penalty for leaving the reference"),
    "clip": Concept("error", "updates are clipped elsewhere"),
    "entropy coefficient": Concept("error", "another loss"),
    "gamma": Concept("error", "other advantages"),
    "lambda": Concept("error", "other advantages"),
    "estimator": Concept("error", "other advantages"),
    "policy": Concept("error", "another model"),
    "reward model": Concept("error", "other rewards"),
    "critic": Concept("error", "other values"),
    "prompts": Concept("error", "other data"),
    "prompts in all": Concept("error", "other data, and another number of steps"),
    "precision": Concept("error", "everything rounds otherwise"),
    "precision of the engine": Concept("error", "the engine rounds otherwise"),
    "seed": Concept("error", "other data order and other samples: the runs differ before the engines do"),
    "seed of the engine": Concept("error", "other samples"),
    "tensor parallelism of the engine": Concept("warning", "sums are taken in another order: it rounds otherwise"),
    "engines": Concept("warning", "samples are drawn in other batches"),
    "memory of the engine": Concept("warning", "the KV pools differ, also where the fraction is equal"),
    "eager": Concept("warning", "other kernels: they round otherwise"),
    "processes of a node": Concept("error", "another number of ranks: each has other samples, sums have another order"),
    "nodes": Concept("error", "another number of ranks: each has other samples, sums have another order"),
    "sharding": Concept("warning", "sums are taken in another order: it rounds otherwise"),
    "beginning": Concept("warning", "one of the runs may go on from what an earlier one left"),
    "concurrency": Concept("warning", "samples are drawn in other batches"),
    "precision of the KV cache": Concept("error", "the engine rounds otherwise"),
}  # fmt: skip
# Canonical parameter of an engine -> the terms that a framework may have for it, the engine's own first.
PARAMETERS: Mapping[str, tuple[str, ...]] = {
    "dtype": ("precision of the engine", "precision"),
    "kv_cache_dtype": ("precision of the KV cache",),
    "seed": ("seed of the engine", "seed"),
    "max_model_len": ("context",),
    "enforce_eager": ("eager",),
    "tensor_parallel": ("tensor parallelism of the engine",),
    "memory_fraction": ("memory of the engine",),
    "kv_cache_tokens": ("memory of the engine",),
    "max_num_seqs": ("concurrency",),
    "max_tokens": ("response length",),
    "temperature": ("temperature",),
    "top_k": ("top-k",),
    "top_p": ("top-p",),
    "min_p": ("min-p",),
    "repetition_penalty": ("repetition penalty",),
}
UNKNOWN = Concept("unknown", "what it changes is not known here: a comparison of the runs may show it")
NOTHING = Concept("info", "it bears on no number that is compared")
_COMPUTES = Concept("error", "it decides what is computed, or in which order")
_ROUNDS = Concept("warning", "other batches or kernels: they round otherwise")


def of_parameter(parameter: Parameter | None) -> Concept:
    """What another value of an engine's parameter does; None: of an argument that has no canonical name."""
    if parameter is None:
        return UNKNOWN
    terms = PARAMETERS.get(parameter.name)
    return CONCEPTS[terms[0]] if terms else _COMPUTES if parameter.results else _ROUNDS


def unchanged(value: Any, settings: Settings) -> Any:
    """The value as it is."""
    return value


@dataclass(frozen=True)
class Meaning:
    """The meaning of one setting.

    `concept`: a key of `CONCEPTS`. `default`: what the framework uses without the setting; None: not known. `read`:
    returns the value in the concept's unit; None if another setting that it needs is not known.
    """

    concept: str
    default: Any = None
    read: Callable[[Any, Settings], Any] = unchanged


def times(*names: tuple[str, int]) -> Callable[[Any, Settings], Any]:
    """A reader that multiplies a count with other settings, each given as (name, default)."""

    def read(value: Any, settings: Settings) -> Any:
        product = value if isinstance(value, int) else None
        for name, default in names:
            number = None if settings.why_unknown(name) else settings.number(name, default)
            product = None if product is None or number is None else product * number
        return product

    return read
