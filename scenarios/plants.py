"""Where a fault can be planted in a run, as plain data. A real run has none.

Production code never imports `scenarios.planted`. Whoever plants a fault passes the name of a factory when a session
or a trainer starts, and the process at fault then imports it.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

# The variable that names the module to import in an engine's own processes. It must be set before the engine starts.
INSIDE = "RLHF_HARNESS_PLANTS"


@dataclass(frozen=True)
class Injection:
    """A call that is made in another process.

    `factory`: "module:function", imported where it is called. `settings`: plain data, the last positional argument.
    """

    factory: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, *args: Any, **named: Any) -> Any:
        module, _, function = self.factory.partition(":")
        return getattr(importlib.import_module(module), function)(*args, self.settings, **named)


@dataclass(frozen=True)
class Plants:
    """What is planted in one side of a comparison; by default nothing.

    `name`, `summary`: of the fault. `engine`: called as (engine, settings, model_path=, scenario=, number=); returns
    a wrapper of the engine with a method `remove()` that leaves the live engine as it was. `number` is the engine's
    number in the run. `trainer`: called as (settings); returns a `scenarios.ppo.hooks.Hooks`. `mapping`: edits of
    what the parameter mapping produces. `inside`: the module that the engine's own processes import; its
    `draw(**fields)` makes their draws, its `open_scheduler(scheduler)` prepares SGLang's scheduler.
    """

    name: str = ""
    summary: str = ""
    engine: Injection | None = None
    trainer: Injection | None = None
    mapping: Mapping[str, Any] = field(default_factory=dict)
    inside: str = ""


NOTHING = Plants()


def inside() -> ModuleType | None:
    """Return the module that plants faults inside this engine process; None in every real run."""
    name = os.environ.get(INSIDE)
    return importlib.import_module(name) if name else None
