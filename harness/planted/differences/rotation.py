"""Each planted fault on another of the built-in architectures: what holds for one model need not hold for the next."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from scenarios.planted.differences.fault import Fault
from scenarios.tiny import ARCHITECTURES, PREFIX, Architecture

ROTATE = "rotate"
CONTROL = "control"  # the fault that plants nothing


def rotated(faults: Sequence[Fault], turn: int) -> list[Fault]:
    """Return each fault on one architecture that has what it acts on, and the control on every one.

    `turn`: another number moves each fault on to the next. A fault that chooses its own model keeps it.
    """
    chosen: list[Fault] = []
    for place, fault in enumerate(faults):
        names = [name for name, architecture in ARCHITECTURES.items() if _fits(fault, architecture)]
        if any(setting.startswith("model.path=") for setting in (*fault.scenario, *fault.settings)):
            chosen.append(fault)
        elif fault.name == CONTROL:
            chosen += [replace(fault, model=PREFIX + name) for name in names]
        else:
            chosen.append(replace(fault, model=PREFIX + names[(place + turn) % len(names)]))
    return chosen


def _fits(fault: Fault, architecture: Architecture) -> bool:
    """Whether the architecture has every tensor that the fault names, and what its plants act on."""
    plants = json.dumps([dict(fault.engine), dict(fault.trainer), dict(fault.mapping), dict(fault.recording)])
    return not any(f'"{beginning}' in plants for beginning in architecture.without)
