"""Makes an engine by its name, on the available device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from scenarios.engines import registry
from scenarios.engines.engine_interface import Bare
from scenarios.engines.mapping import ParameterMap
from scenarios.settings import Scenario


@dataclass(frozen=True)
class EngineOptions:
    """How an engine is made, besides its scenario.

    `mapping`: a user's own mapping and planted edits, as `ParameterMap` takes them. `pure`: for the native stage,
    with nothing of ours loaded.
    """

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
    """Return the engine named `backend`.

    `pure`: without our sampler, log-probabilities and weight loader. Raises UnknownEngine, ParameterRefused, and
    PluginError where an engine of another package raises.
    """
    mode, spec = scenario.rollout.mode, registry.get(backend)
    with registry.guarded(backend):
        engine: Bare = spec.make(model_path, scenario, mode=mode, device=device, pure=pure, mapping=mapping)
    return engine


def resolve_device(device: str) -> str:
    """Return the device; `auto` is CUDA where torch sees a GPU, else the CPU."""
    if device != "auto":
        return device
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"
