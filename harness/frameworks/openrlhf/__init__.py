"""OpenRLHF: PPO with Ray, vLLM only, and prompts whose order nothing seeds."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import wraps
from typing import Any

from harness.doctor.outcome import Outcome
from harness.frameworks.argv import Start
from harness.frameworks.installed import Installation
from harness.frameworks.openrlhf import traps
from harness.frameworks.openrlhf.command import examine
from harness.frameworks.openrlhf.meanings import ASIDE, MEANINGS
from harness.frameworks.settings import Settings
from harness.frameworks.spec import Examined, Framework, Trap

_OTHER = "openrlhf.other_trainer"  # set if a trainer other than PPO's starts: the traps are PPO's


def _examine(start: Start, installed: Installation | None) -> Examined:
    examined = examine(start, installed)
    if "train_ppo_ray" in start.entry:
        return examined
    return dataclasses.replace(
        examined, settings=dataclasses.replace(examined.settings, values={**examined.settings.values, _OTHER: True})
    )


def _of_ppo(look: Callable[[Settings], Iterator[Outcome]]) -> Callable[[Settings], Iterator[Outcome]]:
    @wraps(look)
    def of_ppo(settings: Settings) -> Iterator[Outcome]:
        return iter(()) if settings.on(_OTHER) else look(settings)

    return of_ppo


def _unhooked(start: Start, texts: Sequence[str], installed: Installation | None) -> str:
    """Name a command of OpenRLHF that is not PPO's: the hooks are on PPO's trainer."""
    return "" if "train_ppo_ray" in start.entry else start.entry


def configured(event: Mapping[str, Any], variables: Mapping[str, str]) -> Settings:
    """The arguments as the driver resolved them, by the names of the command line."""
    seed = (event.get("seeds") or {}).get("data")
    return Settings(event.get("settings") or {}, variables=variables, seed=seed)


FRAMEWORK = Framework(
    name="openrlhf",
    module="probes.adapters.openrlhf",
    commands=(r"\bopenrlhf\.cli\.", r"^\s*(import|from)\s+openrlhf\b", r"\btrain_ppo_ray\b"),
    starts=r"^(?:(?:\S*[./])?openrlhf[./]cli[./]\w+(?:\.py)?|(?:\S*/)?train_ppo_ray(?:\.py)?)(?: |$)",
    engines=("vllm",),
    plugin="scenarios.jobs.openrlhf",
    seeds_prompts=True,
    meanings=MEANINGS,
    aside=ASIDE,
    examine=_examine,
    unhooked=_unhooked,
    configured=configured,
    traps=(
        Trap("openrlhf-colocation", _of_ppo(traps.colocation), "0.11.2"),
        Trap("openrlhf-dtype", _of_ppo(traps.dtype), "0.11.2"),
        Trap("openrlhf-data", _of_ppo(traps.data), "0.11.2"),
        Trap("openrlhf-seed", _of_ppo(traps.seed), "0.11.2"),
        Trap("openrlhf-order", _of_ppo(traps.order), "0.11.2"),
    ),
)
