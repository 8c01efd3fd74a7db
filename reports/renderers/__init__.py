"""The formats: one `Renderer` per file of this folder, or behind the entry point group `rlhf_harness.renderers`.

A module is found by being in this folder. It imports its drawing libraries only when it renders, so that listing the
formats is cheap.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from abc import ABC, abstractmethod
from functools import cache
from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING, Any, ClassVar, TextIO, TypeAlias

from probes import plugins
from probes.plugins import Plugin, PluginError

if TYPE_CHECKING:
    from reports.bisect_model import Bisection
    from reports.doctor_model import Report
    from reports.model import Verdict
    from reports.nightly_model import Night
    from reports.run_model import RecordedRun

    Subject: TypeAlias = Verdict | Report | RecordedRun | Night | Bisection

GROUP = "rlhf_harness.renderers"


class UnknownFormat(ValueError):
    """A format that does not exist or does not take this kind of verdict. The message is one sentence."""


class Renderer(ABC):
    """One format. Subjects arrive without secrets, but their text still comes from outside: escape it."""

    name: ClassVar[str]  # the value of --format
    suffix: ClassVar[str]  # suffix of a file in this format, with its dot
    takes: ClassVar[frozenset[str]] = frozenset(
        {"parity", "triage"}
    )  # kinds: parity, audit, triage, doctor, run, nightly, bisect

    @abstractmethod
    def render(self, subject: Subject) -> str:
        """Return the whole text, ending in a newline. A pure function of the subject and the recordings that it
        names.
        """

    def write(self, subject: Subject, stream: TextIO, *, verbose: bool = False) -> None:
        """Write it to a stream, which may be a terminal. `verbose`: for formats that a person reads there."""
        stream.write(self.render(subject))
        stream.flush()


def names(kind: str = "") -> list[str]:
    """Return the formats that take a kind of verdict (all without a kind). Plug-ins are all listed, because none is
    loaded.
    """
    builtin = [name for name, renderer in _builtin().items() if not kind or kind in renderer.takes]
    return [*builtin, *(name for name in _installed() if name not in builtin)]


def find(format: str, kind: str = "") -> Renderer:
    """Return the renderer named `format`, or the class at `package.module:Class`.

    Raises UnknownFormat, and PluginError for a broken plug-in.
    """
    builtin = _builtin().get(format)
    renderer = builtin() if builtin else _made(_plugin(format, kind))
    if kind and kind not in renderer.takes:
        alternatives = f"it takes {', '.join(sorted(renderer.takes))}; {', '.join(names(kind))} do"
        raise UnknownFormat(f"format {format!r} does not take a verdict of {kind}: {alternatives}")
    return renderer


def refused() -> tuple[PluginError, ...]:
    """Return the errors of plug-ins that bring no format. Loads all plug-ins."""

    def take(plugin: Plugin, renderer: Any) -> None:
        if plugin.entry.name in _builtin():
            raise plugins.name_taken(plugin.entry.name, f"the harness ({_builtin()[plugin.entry.name].__module__})")
        if (first := _installed()[plugin.entry.name]) != plugin:
            raise plugins.name_taken(plugin.entry.name, first)
        _valid(renderer)

    return plugins.load(GROUP, take)


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
def _installed() -> dict[str, Plugin]:
    """Return the plug-ins by name; of two with one name, the first: see `refused`."""
    return {plugin.entry.name: plugin for plugin in reversed(plugins.installed(GROUP))}


def _plugin(format: str, kind: str) -> Plugin:
    plugin = _installed().get(format)
    if plugin is None and ":" in format:
        plugin = Plugin(EntryPoint(format, format, GROUP))
    if plugin is None:
        format_names = ", ".join(names(kind))
        raise UnknownFormat(f"there is no format {format!r}: it is one of {format_names}, or package.module:Class")
    return plugin


def _made(plugin: Plugin) -> Renderer:
    kind = plugin.load()
    with plugin.guarded("cannot be used:"):
        return _guarded(_valid(kind), plugin)


def _valid(kind: Any) -> Renderer:
    """Return an instance of another package's renderer. Raises Unfit, and whatever its code raises."""
    if not (inspect.isclass(kind) and issubclass(kind, Renderer)):
        raise plugins.Unfit("it is no subclass of reports.renderers.Renderer")
    made: Renderer = kind()
    if isinstance(made.takes, str) or not all(isinstance(name, str) for name in made.takes):
        raise plugins.Unfit("`takes` is no set of names")
    return made


def _guarded(renderer: Renderer, plugin: Plugin) -> Renderer:
    """Return another package's renderer, wrapped so that it raises nothing but PluginError."""

    class Guarded(Renderer):
        takes = renderer.takes
        suffix = renderer.suffix

        def render(self, subject: Subject) -> str:
            with plugin.guarded():
                text = renderer.render(subject)
                if not isinstance(text, str):
                    raise TypeError(f"render() returned {type(text).__name__}, which is no str")
                return text

        def write(self, subject: Subject, stream: TextIO, *, verbose: bool = False) -> None:
            if type(renderer).write is Renderer.write:  # an error of the stream is not the plug-in's
                super().write(subject, stream, verbose=verbose)
            else:
                with plugin.guarded():
                    renderer.write(subject, stream, verbose=verbose)

    return Guarded()
