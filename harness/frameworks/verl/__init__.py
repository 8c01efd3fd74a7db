"""verl: Hydra's command line, vLLM and SGLang, and plugins of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.frameworks.settings import Settings
from harness.frameworks.spec import Framework, Trap
from harness.frameworks.verl import traps
from harness.frameworks.verl.command import examine
from harness.frameworks.verl.meanings import MEANINGS
from harness.frameworks.verl.traps import ROLLOUT, SGLANG_SEED
from probes.adapters.verl_driver import WITHOUT_EFFECT
from scenarios.engines.spec import FramePattern

_KWARGS = f"{ROLLOUT}.engine_kwargs"


def configured(event: Mapping[str, Any], variables: Mapping[str, str]) -> Settings:
    """The settings of a recorded configuration. The adapter keeps the engine and its seed apart from the other
    settings."""
    backend = event.get("backend")
    values = {**(event.get("settings") or {}), f"{ROLLOUT}.name": backend}
    if backend == "sglang":
        values[SGLANG_SEED] = (event.get("seeds") or {}).get("engine")
    return Settings(values, variables=variables)


FRAMEWORK = Framework(
    name="verl",
    module="probes.adapters.verl",
    commands=(
        r"\bverl\.(trainer|experimental)\.",
        r"(^|\bpython[\w.]*\s+(-\S+\s+)*)(\S*/)?verl/trainer/main_ppo\w*\.py\b",
        r"^\s*(import|from)\s+verl\b",
        r"\bactor_rollout_ref\.",
    ),
    starts=r"^(?:\S*[./])?verl[./]trainer[./]main_ppo(?:_v0)?(?:\.py)?(?: |$)",
    engines=("vllm", "sglang"),
    switch=f"{ROLLOUT}.name",
    # Lets the engines load the processors of coupled sampling, and report log-probabilities of the model's own
    # distribution.
    overrides=(
        f"++{_KWARGS}.vllm.logits_processors=['scenarios.engines.vllm.coupled:Coupled']",
        f"++{_KWARGS}.vllm.async_scheduling=False",
        f"{ROLLOUT}.logprobs_mode=raw_logprobs",
        f"++{_KWARGS}.sglang.enable_custom_logit_processor=True",
        f"++{_KWARGS}.sglang.disable_overlap_schedule=True",
    ),
    entry_points={"verl.plugins": "scenarios.jobs.verl"},
    own_seeds="data.seed=N actor_rollout_ref.rollout.seed=N",
    meanings=MEANINGS,
    aside=(*WITHOUT_EFFECT, "hydra"),
    engine_kwargs=_KWARGS,
    examine=examine,
    configured=configured,
    traps=(
        Trap("verl-seed", traps.seed, "0.9.1"),
        Trap("verl-determinism", traps.determinism, "0.9.1"),
        Trap("verl-dtype", traps.dtype, "0.9.1"),
        Trap("verl-sizes", traps.sizes, "0.9.1"),
        Trap("verl-amd", traps.amd, "0.9.1"),
    ),
    # Polls its replay buffer until agents, which are called from elsewhere, have filled it.
    waits=(
        FramePattern("ray_get", r"_wait_for_next_poll", r"verl/trainer/ppo/v1/replay_buffer", "samples of the rollout"),
    ),
)
