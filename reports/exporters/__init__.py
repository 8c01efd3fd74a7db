"""Writes a recorded run's metrics as files of an experiment tracker, without a server. One tracker per file of this
folder.

The file's name is the tracker's. Its function `write(run, folder)` writes into an existing folder, and imports the
tracker's package only then.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from probes.format import number

if TYPE_CHECKING:
    from reports.run_model import RecordedRun

PROJECT = "rlhf-harness"


def names() -> list[str]:
    """Return the names of all trackers."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def find(name: str) -> Callable[[RecordedRun, Path], None]:
    """Return the tracker's `write`. Raises KeyError for an unknown tracker."""
    if name not in names():
        raise KeyError(name)
    write: Callable[[RecordedRun, Path], None] = importlib.import_module(f"{__name__}.{name}").write
    return write


def scalars(run: RecordedRun) -> Iterator[tuple[int, dict[str, float]]]:
    """(step, its numbers by name), in the order of the recording."""
    for index, metrics in enumerate(run.steps):
        step = metrics.get("step")
        values = {name: number(value) for name, value in metrics.items() if name != "step" and _numeric(value)}
        yield (step if isinstance(step, int) else index), values


def _numeric(value: object) -> bool:
    """Whether a value is a number, or "nan" or "inf" as a recording writes what JSON lacks."""
    return isinstance(value, (int, float)) or (isinstance(value, str) and value in ("nan", "inf", "-inf"))
