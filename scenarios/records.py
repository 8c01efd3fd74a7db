"""The kinds of events that a run promises in its run.json, so that a reader notices when one of them is missing."""

from __future__ import annotations

from scenarios.settings import Scenario

# What every run that trains has recorded on hf, vLLM and SGLang; tests/integration checks it.
_TRAINING = (
    "boundaries",
    "call",
    "data",
    "engine_info",
    "engine_stats",
    "environment",
    "group",
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
    """Return the kinds that a run of this scenario always records.

    `part`: it is a replay or a lifted stage, which records less. Nothing is promised for those, nor for a run that
    does not train.
    """
    return _TRAINING if scenario.train and not part else ()
