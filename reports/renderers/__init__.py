"""The formats: one `Renderer` a file in this folder, or behind the entry point group `rlhf_harness.renderers`.

A module here is found by being here; it imports what draws only when it renders, so that listing the formats is cheap.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from abc import ABC, abstractmethod
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, ClassVar, TextIO, TypeAlias

if TYPE_CHECKING:
    from reports.bisect_model import Bisection
    from reports.doctor_model import Report
    from reports.model import Verdict
    from reports.nightly_model import Night
    from reports.run_model import RecordedRun

    Subject: TypeAlias = Verdict | Report | RecordedRun | Night | Bisection

GROUP = "rlhf_harness.renderers"


class UnknownFormat(ValueError):
    """A format that does not exist, cannot be imported, or does not take this kind of verdict; one sentence."""


class Renderer(ABC):
    """One format. Subjects arrive scrubbed of secrets; text in them is from outside all the same: escape it."""

    name: ClassVar[str]  # what --format takes
    suffix: ClassVar[str]  # of a file in this format, with its dot
    takes: ClassVar[frozenset[str]] = frozenset(
        {"parity", "triage"}
    )  # kinds: parity, triage, doctor, run, nightly, bisect

    @abstractmethod
    def render(self, subject: Subject) -> str:
        """All of it, ending in a newline. A pure function of the subject and the recordings that it names."""

    def write(self, subject: Subject, stream: TextIO, *, verbose: bool = False) -> None:
        """Write it to a stream, which may be a terminal; `verbose` counts for formats that a person reads there."""
        stream.write(self.render(subject))
        stream.flush()


def names(kind: str = "") -> list[str]:
    """The formats that take a kind of verdict (all without one); of entry points all, since none is loaded."""
    builtin = [name for name, renderer in _builtin().items() if not kind or kind in renderer.takes]
    return [*builtin, *(name for name in _installed() if name not in builtin)]


def find(format: str, kind: str = "") -> Renderer:
    """The renderer named `format`, or the class at `package.module:Class`; UnknownFormat says what is wrong."""
    renderer = _builtin().get(format) or _loaded(format, kind)
    if kind and kind not in renderer.takes:
        others = f"it takes {', '.join(sorted(renderer.takes))}; {', '.join(names(kind))} do"
        raise UnknownFormat(f"format {format!r} does not take a verdict of {kind}: {others}")
    return renderer()


@cache
def _builtin() -> dict[str, type[Renderer]]:
    modules = [importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]
    classes = [value for module in modules for value in vars(module).values() if _is_renderer(value, module.__name__)]
    return {renderer.name: renderer for renderer in classes}


def _is_renderer(value: object, module: str) -> bool:
    return (
        inspect.isclass(value)
        and issubclass(value, Renderer)
        and value.__module__ == module
        and not inspect.isabstract(value)
    )


@cache
def _installed() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP)}


def _loaded(format: str, kind: str) -> type[Renderer]:
    point = _installed().get(format)
    if point is None and ":" in format:
        point = EntryPoint(format, format, GROUP)
    if point is None:
        known = ", ".join(names(kind))
        raise UnknownFormat(f"there is no format {format!r}: it is one of {known}, or package.module:Class")
    try:
        renderer = point.load()
    except Exception as error:  # whatever a stranger's module raises while it is imported
        raise UnknownFormat(f"format {format!r} cannot be loaded: {type(error).__name__}: {error}") from error
    if not (inspect.isclass(renderer) and issubclass(renderer, Renderer)):
        raise UnknownFormat(f"format {format!r}: {point.value} is no subclass of reports.renderers.Renderer")
    return renderer
