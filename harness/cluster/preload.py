"""What the processes of a run import before they are forked. Only where no import can touch a device."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path

from harness import envs
from harness.cluster.fork_servers import Preload
from harness.cluster.launch import driver_seat
from harness.cluster.side import Side
from harness.envs.install import nvidia_gpu
from probes import limits

# Not Ray: when its core is loaded, it reads variables of its worker, such as its job and its token.
LEARNER = ("scenarios.stage", "scenarios.ppo.roles")


def preloads(sides: Sequence[Side], device: str, *, engines: bool = True) -> list[Preload]:
    """The preloads of these sides' learners and `engines`: one for each interpreter that runs on a CPU."""
    wanted = []
    if device != "cuda" and not nvidia_gpu():
        seat = driver_seat()
        modules = (*LEARNER, *dict.fromkeys(_modeling(side.scenario.model.path) for side in sides))
        wanted.append(Preload(seat.python, seat.env, modules))
    for side in sides if engines else ():
        environment, spec = side.environment, side.spec
        if environment.device == "cpu" and spec.preload and not spec.embedded:
            variables = {**environment.env, "PYTHONPATH": str(envs.bundle()), "OMP_NUM_THREADS": "1"}
            wanted.append(Preload(environment.python, variables, ("scenarios.session", *spec.preload)))
    return wanted


def _modeling(path: str) -> str:
    """The module of Transformers with this model's classes. Our own models are Qwen2's."""
    kind = "qwen2"
    with contextlib.suppress(OSError, ValueError):
        kind = str(json.loads(limits.read_text(Path(path).expanduser() / "config.json")).get("model_type", kind))
    return f"transformers.models.{kind}.modeling_{kind}"
