"""An engine by its name: hf, vllm or sglang, on the device that there is."""

from __future__ import annotations

from scenarios.engines import parameters
from scenarios.engines.engine import Bare
from scenarios.engines.mapping import ParameterMap
from scenarios.settings import Scenario


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
    ParameterRefused for an unknown one."""
    mode = scenario.rollout.mode
    if backend == "hf":
        from scenarios.engines.hf.engine import HFEngine

        return HFEngine(model_path, scenario, mode=mode, device=device, mapping=mapping)
    if backend == "vllm":
        from scenarios.engines.vllm.engine import VLLMEngine

        return VLLMEngine(model_path, scenario, mode=mode, device=device, pure=pure, mapping=mapping)
    if backend == "sglang":
        from scenarios.engines.sglang.engine import SGLangEngine

        return SGLangEngine(model_path, scenario, mode=mode, device=device, pure=pure, mapping=mapping)
    raise parameters.ParameterRefused(f"unknown engine {backend!r}: hf, vllm or sglang")


def resolve_device(device: str) -> str:
    """`auto` is CUDA where torch sees one, else the CPU."""
    if device != "auto":
        return device
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"
