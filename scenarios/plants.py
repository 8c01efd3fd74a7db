"""Where a fault can be planted in a run, as plain data. A real run has none.

Production code never imports `scenarios.planted`. Whoever plants a fault names a factory when a session or a trainer
starts, and the process at fault imports it then.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

# Names a module that an engine's own processes import. It must be set before the engine starts.
INSIDE = "RLHF_HARNESS_PLANTS"


@dataclass(frozen=True)
class Injection:
    """`factory`: "module:function", imported where it is called. `settings`: plain data, its last argument."""

    factory: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, *args: Any, **named: Any) -> Any:
        module, _, function = self.factory.partition(":")
        return getattr(importlib.import_module(module), function)(*args, self.settings, **named)


@dataclass(frozen=True)
class Plants:
    """What is planted in one side of a comparison; the default plants nothing.

    `engine` is called as (engine, settings, model_path=, scenario=, number=) and returns a wrapper of the engine that
    also has `remove()`, which leaves the live engine as it was; `number` is the engine's among those of a run.
    `trainer` is called as (settings) and returns a `scenarios.ppo.hooks.Hooks`. `mapping`: edits of what the parameter
    mapping produces. `inside`: the module that the engine's own processes import: `draw(**fields)` makes their draws,
    `open_scheduler(scheduler)` opens SGLang's.
    """

    name: str = ""
    summary: str = ""
    engine: Injection | None = None
    trainer: Injection | None = None
    mapping: Mapping[str, Any] = field(default_factory=dict)
    inside: str = ""


NOTHING = Plants()


def inside() -> ModuleType | None:
    """The module that plants faults inside this engine process; None in every real run."""
    name = os.environ.get(INSIDE)
    return importlib.import_module(name) if name else None
