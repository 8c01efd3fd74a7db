"""The kinds of events that a run promises in its run.json, so that a reader knows when one of them is lost."""

from __future__ import annotations

from scenarios.settings import Scenario

# What every run that trains has recorded, on hf, vLLM and SGLang; tests/integration holds it.
_TRAINING = (
    "boundaries",
    "call",
    "data",
    "engine_info",
    "environment",
    "learner",
    "model",
    "probe_cost",
    "sampling",
    "shapes",
    "span",
    "step",
    "sync",
    "tokenizer",
    "weights",
)


def promised(scenario: Scenario, *, part: bool) -> tuple[str, ...]:
    """The kinds that a run of this scenario records in any case.

    `part`: it is a replay or a lifted stage, which records less; nothing is promised of it, nor of a run that does not
    train.
    """
    return _TRAINING if scenario.train and not part else ()
