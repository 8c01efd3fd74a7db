"""One folder for each subject that a user asks about. The first word of a file's name is a step of the judge.

`observed`: what the recordings show; nothing is judged. `causes`: how a cause is recognised, proven and told apart from
its rivals. `explain`: causes that are found by reading the recorded numbers in another way. `checks`: what confirms a
difference, or rules it out. `live`: what a live engine is asked. A step imports only from those before it
(tests/contract/test_steps.py).
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from types import ModuleType


def modules(step: str) -> Iterator[ModuleType]:
    """The modules of this step in every subject, by their names."""
    for module in pkgutil.walk_packages(__path__, f"{__name__}."):
        if module.name.rpartition(".")[2].partition("_")[0] == step:
            yield importlib.import_module(module.name)
