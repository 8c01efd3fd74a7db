"""The judge's rules, one folder for each subject that a user asks about. The first word of a file name is its step:

- `observed`: what recordings show, without judging it.
- `causes`: how a cause is recognised, proven and told from its rivals.
- `explain`: causes that are found by reading the recorded numbers in another way.
- `checks`: what confirms a difference or rules it out.
- `live`: what is tried on a live engine.

A step imports only from the steps before it (tests/contract/test_steps.py).
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from types import ModuleType


def modules(step: str) -> Iterator[ModuleType]:
    """Yield the modules of this step in every subject, in the order of their names."""
    for module in pkgutil.walk_packages(__path__, f"{__name__}."):
        if module.name.rpartition(".")[2].partition("_")[0] == step:
            yield importlib.import_module(module.name)
