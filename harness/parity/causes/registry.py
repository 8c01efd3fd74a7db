"""Every family of causes: those of this folder, and another package's by its entry point.

Each module of this folder that has `FAMILIES` is read, and each entry point of the group `rlhf_harness.causes`: a
`CauseFamily` of another package.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
import warnings
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path

from harness.parity.causes.family import CauseFamily
from reports.model import CauseKey

GROUP = "rlhf_harness.causes"


@functools.cache
def families() -> dict[str, CauseFamily]:
    """Name -> family."""
    return {one.name: one for one in (*_ours(), *_theirs())}


def family(key: CauseKey) -> CauseFamily:
    """The family of a cause; one that nothing is known of where there is none."""
    return families().get(key.family) or CauseFamily(key.family)


def _ours() -> Iterator[CauseFamily]:
    for module in pkgutil.iter_modules([str(Path(__file__).parent)]):
        yield from getattr(importlib.import_module(f"{__package__}.{module.name}"), "FAMILIES", ())


def _theirs() -> Iterator[CauseFamily]:
    for entry in entry_points(group=GROUP):
        try:
            found = entry.load()
        except Exception as error:  # another package's code: our own causes go on
            warnings.warn(f"the cause {entry.name!r} cannot be loaded: {error}", stacklevel=2)
        else:
            yield found
