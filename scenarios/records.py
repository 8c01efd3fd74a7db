"""What a run promises to record in its run.json, so that a reader notices when some of it is missing."""

from __future__ import annotations

from collections.abc import Mapping

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

# The kinds of which two whole runs, or lifted stages, of one scenario record as many events. `answered`, which a router
# decides, and what few processes say of themselves (`note`, `hook_off`, `engine_died`) are not among them.
OF_THE_SCENARIO = (*_TRAINING, "collective", "share")
# The kinds of which an engine's process records some that belong to the engine: groups that it makes, and their spans.
OF_THE_ENGINE = ("group", "span")
# Role -> the kinds of events that each process of that role records at least once, whatever its rank and its mode.
_WORKER = ("environment", "group", "span")
OF_EACH_PROCESS: Mapping[str, tuple[str, ...]] = {
    "trainer": ("environment",),
    "actor": _WORKER,
    "critic": _WORKER,
    "reference": _WORKER,
    "reward": _WORKER,
    "rollout": ("environment", "engine_info", "sampling", "call"),
}
# The kinds of which the first trainer records at least one event in each step.
OF_EACH_STEP = ("boundaries", "data", "learner", "probe_cost", "shapes", "span", "step", "sync", "weights")
# A kind of event -> the kind of frame of which each process records as many.
AS_MANY_AS_FRAMES: Mapping[str, str] = {"engine_stats": "rollout"}


def promised(scenario: Scenario, *, part: bool) -> tuple[str, ...]:
    """Return the kinds that a run of this scenario always records.

    `part`: it is a replay or a lifted stage, which records less. Nothing is promised for those, nor for a run that
    does not train.
    """
    return _TRAINING if scenario.train and not part else ()
