"""Planted faults inside an engine's model: modules that compute with a copy made of old weights, or wrongly."""

from __future__ import annotations

import copy
import functools
import json
from typing import Any

from scenarios.faults.plant import Plant, Receive, Setting
from scenarios.rollout.engine import SyncGroup, SyncReport, WeightMeta

KEPT, HOOKED = "_harness_kept", "_harness_hooked"


class KeptCopy(Plant):
    """Modules compute with copies of themselves from before a sync: every parameter is right, what is computed is old.

    Setting: {"modules": [names], "from": weight version}. A restart of the engine undoes it, a sync does not.
    """

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._version = -1

    def receive(self, receive: Receive, group: SyncGroup, weights: list[WeightMeta]) -> SyncReport:
        self._version += 1
        if self._version == int(self.value["from"]):
            reach(self.setting.engine, keep, self.value["modules"])
        return receive(group, weights)

    def remove(self) -> None:
        reach(self.setting.engine, release, self.value["modules"])


class Bent(Plant):
    """Modules return a multiple of what they should, as a wrong kernel does: no sync and no restart undoes it.

    Setting: {"modules": [names], "by": factor}.
    """

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        reach(setting.engine, bend, self.value["modules"], by=float(self.value["by"]))

    def remove(self) -> None:
        reach(self.setting.engine, release, self.value["modules"])


def keep(model: Any, modules: list[str]) -> None:
    """From now on these modules compute with copies of their present weights."""
    for name in modules:
        module = model.get_submodule(name)
        kept = copy.deepcopy(module)
        object.__setattr__(module, KEPT, kept)  # no submodule: the weights of a copy are nobody's parameters
        module.forward = kept.forward


def bend(model: Any, modules: list[str], by: float) -> None:
    """From now on these modules return `by` times what they compute."""

    def bent(module: Any, inputs: Any, output: Any) -> Any:
        return (output[0] * by, *output[1:]) if isinstance(output, tuple) else output * by

    for name in modules:
        module = model.get_submodule(name)
        object.__setattr__(module, HOOKED, module.register_forward_hook(bent))


def release(model: Any, modules: list[str]) -> None:
    """Undo `keep` and `bend`."""
    for name in modules:
        module = model.get_submodule(name)
        if hasattr(module, HOOKED):
            getattr(module, HOOKED).remove()
            object.__delattr__(module, HOOKED)
        if hasattr(module, KEPT):
            del module.forward
            object.__delattr__(module, KEPT)


def reach(engine: Any, change: Any, modules: list[str], **setting: float) -> None:
    """Apply `change` to the live model of an engine, whichever it is and wherever it lives."""
    match engine.name:
        case "hf":
            change(engine.model, modules, **setting)
        case "vllm":
            engine._llm.apply_model(functools.partial(change, modules=modules, **setting))
        case "sglang":
            engine._engine.collective_rpc(
                "harness_planted", what=change.__name__, modules=json.dumps(modules), setting=json.dumps(setting)
            )


def planted(scheduler: Any, what: str, modules: str, setting: str) -> None:
    """SGLang's side of `reach`: a method of its scheduler."""
    model = scheduler.tp_worker.model_runner.model
    changes: dict[str, Any] = {"keep": keep, "release": release, "bend": bend}
    changes[what](model, json.loads(modules), **json.loads(setting))
