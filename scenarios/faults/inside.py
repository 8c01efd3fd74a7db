"""Planted faults inside an engine's model: a module that goes on computing with a copy made of old weights."""

from __future__ import annotations

import copy
import functools
import json
from typing import Any

from scenarios.faults.plant import Plant, Receive, Setting
from scenarios.rollout.engine import SyncGroup, SyncReport, WeightMeta

KEPT = "_harness_kept"


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


def keep(model: Any, modules: list[str]) -> None:
    """From now on these modules compute with copies of their present weights."""
    for name in modules:
        module = model.get_submodule(name)
        kept = copy.deepcopy(module)
        object.__setattr__(module, KEPT, kept)  # no submodule: the weights of a copy are nobody's parameters
        module.forward = kept.forward


def bend(model: Any, modules: list[str]) -> None:
    """From now on these modules return 1.01 times what they should, as a wrong kernel would. A restart undoes it."""

    def bent(module: Any, inputs: Any, output: Any) -> Any:
        return (output[0] * 1.01, *output[1:]) if isinstance(output, tuple) else output * 1.01

    for name in modules:
        model.get_submodule(name).register_forward_hook(bent)


def release(model: Any, modules: list[str]) -> None:
    """Undo `keep`."""
    for name in modules:
        module = model.get_submodule(name)
        if hasattr(module, KEPT):
            del module.forward
            object.__delattr__(module, KEPT)


def reach(engine: Any, change: Any, modules: list[str]) -> None:
    """Apply `change` to the live model of an engine, whichever it is and wherever it lives."""
    match engine.name:
        case "hf":
            change(engine.model, modules)
        case "vllm":
            engine._llm.apply_model(functools.partial(change, modules=modules))
        case "sglang":
            engine._engine.collective_rpc("harness_planted", what=change.__name__, modules=json.dumps(modules))


def planted(scheduler: Any, what: str, modules: str) -> None:
    """SGLang's side of `reach`: a method of its scheduler."""
    model = scheduler.tp_worker.model_runner.model
    {"keep": keep, "release": release, "bend": bend}[what](model, json.loads(modules))
