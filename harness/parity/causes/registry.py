"""Every family of causes: those of this folder, and another package's by its entry point.

Each module of this folder that has `FAMILIES` is read, and each entry point of the group `rlhf_harness.causes`: a
`CauseFamily` of another package.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, TypeVar

from harness.parity.causes.family import CauseFamily
from harness.parity.causes.turns import Intervention, Turn, in_order
from reports.model import CauseKey

T = TypeVar("T", bound=Turn)
GROUP = "rlhf_harness.causes"


@functools.cache
def families() -> dict[str, CauseFamily]:
    """Name -> family."""
    return {one.name: one for one in (*_theirs(), *_ours())}


def family(key: CauseKey) -> CauseFamily:
    """The family of a cause; one that nothing is known of where there is none."""
    return families().get(key.family) or CauseFamily(key.family)


def rules(ours: Iterable[Turn]) -> tuple[Turn, ...]:
    """How recordings show causes, in order: `ours`, and those of every family."""
    return _listed(ours, lambda family: family.rules)


def trials(ours: Iterable[Turn]) -> tuple[Turn, ...]:
    """The mistakes that the reference is made to make, in order."""
    return _listed(ours, lambda family: family.trials)


def interventions(ours: Iterable[Intervention]) -> tuple[Intervention, ...]:
    """What is undone on an engine, in order."""
    return _listed(ours, lambda family: family.interventions)


def _listed(ours: Iterable[T], of: Callable[[CauseFamily], tuple[T, ...]]) -> tuple[T, ...]:
    every = families().values()
    listed = [*ours, *(turn for one in every if not one.package for turn in of(one))]
    for one in every:
        if one.package:
            with_theirs = [*listed, *(replace(turn, run=_guarded(turn.run, one.package)) for turn in of(one))]
            try:
                in_order(with_theirs)
            except ValueError as error:
                warnings.warn(f"the cause {one.package!r} has no place: {error}", stacklevel=2)
            else:
                listed = with_theirs
    return in_order(listed)


def _guarded(run: Callable[..., Any], package: str) -> Callable[..., Any]:
    """A function of another package. What it raises ends no verdict: it explains nothing then."""

    @functools.wraps(run)
    def guarded(*arguments: Any) -> list[Any]:
        try:
            return list(run(*arguments) or ())
        except Exception as error:  # another package's code
            warnings.warn(f"the cause {package!r} raised {type(error).__name__}: {error}", stacklevel=2)
            return []

    return guarded


def _ours() -> Iterator[CauseFamily]:
    for module in pkgutil.iter_modules([str(Path(__file__).parent)]):
        yield from getattr(importlib.import_module(f"{__package__}.{module.name}"), "FAMILIES", ())


def _theirs() -> Iterator[CauseFamily]:
    for entry in entry_points(group=GROUP):
        try:
            yield replace(entry.load(), package=entry.name)
        except Exception as error:  # another package's code: our own causes go on
            warnings.warn(f"the cause {entry.name!r} cannot be loaded: {error}", stacklevel=2)
