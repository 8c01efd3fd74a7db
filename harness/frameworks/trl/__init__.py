"""TRL: a script or the `trl` command, processes of accelerate or torchrun, and vLLM in the same process or on a
server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.frameworks.settings import Settings
from harness.frameworks.spec import Framework, Trap
from harness.frameworks.trl import traps
from harness.frameworks.trl.command import examine, unknown_option
from harness.frameworks.trl.meanings import MEANINGS
from harness.frameworks.trl.trainers import unhooked
from harness.frameworks.trl.traps import LOADED
from probes.adapters.trl import WITHOUT_EFFECT

_COMMANDS = "distillation|dpo|env|grpo|kto|reward|rloo|sft|skills|vllm-serve"


def configured(event: Mapping[str, Any], variables: Mapping[str, str]) -> Settings:
    """The settings of a recorded configuration. The adapter keeps the engine's apart; the loaded model's dtype is
    known."""
    scenario = event.get("scenario") or {}
    values = {**(event.get("settings") or {}), **(scenario.get("rollout_engine") or {})}
    values[LOADED] = (scenario.get("model") or {}).get("dtype")
    return Settings(values, variables=variables)


FRAMEWORK = Framework(
    name="trl",
    module="probes.adapters.trl",
    commands=(
        r"^\s*(import|from)\s+trl\b",
        r"(^|/)trl$",
        r"\btrl\.(cli|scripts)\b",
        rf"(^|[\s;&/])trl\s+({_COMMANDS.replace('env|', '').replace('skills|', '')})\b",
    ),
    starts=rf"^\S+\.py(?: |$)|^(?:\S*/)?trl (?:{_COMMANDS})$|^trl\.(?:cli|scripts)\b",
    engines=("vllm",),
    unpaired={"hf": "with use_vllm off, and then records no log-probabilities of the samples"},
    beside=("accelerate", "transformers"),
    plugin="scenarios.jobs.trl",
    own_seeds="seed=N among the trainer's arguments",
    meanings=MEANINGS,
    aside=WITHOUT_EFFECT,
    examine=examine,
    unknown_option=unknown_option,
    unhooked=unhooked,
    configured=configured,
    traps=(
        Trap("trl-group", traps.group, "1.16.0"),
        Trap("trl-seed", traps.seed, "1.16.0"),
        Trap("trl-ratio", traps.ratio, "1.16.0"),
        Trap("trl-dtype", traps.dtype, "1.16.0"),
        Trap("trl-sizes", traps.sizes, "1.16.0"),
    ),
)
