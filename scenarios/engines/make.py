"""An engine by its name, on the device that there is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from scenarios.engines import registry
from scenarios.engines.engine import Bare
from scenarios.engines.mapping import ParameterMap
from scenarios.settings import Scenario


@dataclass(frozen=True)
class EngineOptions:
    """What an engine is made with beside its scenario. `mapping`: a user's own and planted edits, as `ParameterMap`
    takes them. `pure`: for the native stage, with nothing of ours loaded."""

    device: str = "auto"
    mapping: dict[str, Any] | None = None
    pure: bool = False


def make_engine(
    backend: str,
    model_path: str,
    scenario: Scenario,
    *,
    device: str,
    pure: bool = False,
    mapping: ParameterMap | None = None,
) -> Bare:
    """The engine named `backend`; `pure`: with no sampler, log-probabilities or weight loader of ours. Raises
    UnknownEngine, a ParameterRefused, and PluginError for an engine of another package that raises."""
    mode, spec = scenario.rollout.mode, registry.get(backend)
    with registry.guarded(backend):
        engine: Bare = spec.make(model_path, scenario, mode=mode, device=device, pure=pure, mapping=mapping)
    return engine


def resolve_device(device: str) -> str:
    """`auto` is CUDA where torch sees one, else the CPU."""
    if device != "auto":
        return device
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"
