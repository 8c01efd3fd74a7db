"""All engines: ours, one folder each, and those that installed packages bring.

A package adds one through the entry point group `rlhf_harness.engines`: the entry's name is the engine's name, its
value an `EngineSpec`. This module imports nothing of an engine, no torch and no Ray.
"""

from __future__ import annotations

import functools
import importlib
import re
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

from probes import plugins
from probes.engines import EngineProcess
from probes.plugins import Plugin, PluginError
from scenarios.engines.engine_interface import EngineError, ParameterRefused
from scenarios.engines.spec import EngineSpec

GROUP = "rlhf_harness.engines"
BUILT_IN = ("hf", "vllm", "sglang")
NAME = r"[\w.-]+"  # what may stand before an @ on the command line
MEANT = (EngineError, ParameterRefused)  # exceptions that an engine's code raises on purpose


class UnknownEngine(ParameterRefused):
    """There is no engine of that name. The message lists the existing ones."""


@functools.cache
def _loaded() -> tuple[dict[str, EngineSpec], dict[str, Plugin], tuple[PluginError, ...]]:
    """Return every engine by name, ours first; the plug-ins that brought the others; and errors of those that bring
    none.
    """
    specs_by_name = {name: importlib.import_module(f"scenarios.engines.{name}").SPEC for name in BUILT_IN}
    homes: dict[str, Plugin] = {}

    def take(plugin: Plugin, spec: Any) -> None:
        if not isinstance(spec, EngineSpec):
            raise plugins.Unfit("it is no scenarios.engines.spec.EngineSpec")
        if spec.name != plugin.entry.name or not re.fullmatch(NAME, spec.name):
            raise plugins.Unfit(f"its engine is named {spec.name!r}: an entry point has its engine's name, without @")
        if spec.name in specs_by_name:
            raise plugins.name_taken(spec.name, homes.get(spec.name, f"the harness (scenarios.engines.{spec.name})"))
        guard = functools.partial(plugin.guard, allowed=MEANT)
        specs_by_name[spec.name] = replace(
            spec, refusal=guard(spec.refusal), unlike=guard(spec.unlike), most_scored=guard(spec.most_scored)
        )
        homes[spec.name] = plugin

    refused = plugins.load(GROUP, take)
    return specs_by_name, homes, refused


def specs() -> dict[str, EngineSpec]:
    """Return every engine by name, ours first. Broken plug-ins are left out: see `refused`."""
    return _loaded()[0]


def refused() -> tuple[PluginError, ...]:
    """Return the errors of plug-ins that bring no engine."""
    return _loaded()[2]


def home(name: str) -> Plugin | None:
    """Return the plug-in that brings an engine; None for ours."""
    return _loaded()[1].get(name)


def refusal(name: str) -> str:
    """Return why a plug-in of that name brings no engine; empty where there is no such plug-in, or it brings one."""
    return "; ".join(str(error) for error in refused() if error.name == name)


def guarded(name: str) -> AbstractContextManager[None]:
    """Return a context for an engine's code: what another package's code raises becomes a PluginError that names it."""
    plugin = _loaded()[1].get(name)
    return plugin.guarded(allowed=MEANT) if plugin is not None else nullcontext()


def names(*, embedded: bool | None = None) -> tuple[str, ...]:
    """Return the names of all engines, or of those that are embedded or not."""
    return tuple(name for name, spec in specs().items() if embedded is None or spec.embedded == embedded)


def processes() -> dict[str, EngineProcess]:
    """Return how to recognise the processes of each engine."""
    return {name: spec.process for name, spec in specs().items()}


@functools.cache
def variables() -> tuple[str, ...]:
    """Return prefixes of environment variables that only one engine's code reads."""
    return tuple(name for spec in specs().values() for name in spec.process.variables)


def find(name: str) -> EngineSpec | None:
    """Return the engine of that name; None without one, because recordings may name any."""
    return specs().get(name)


def get(name: str) -> EngineSpec:
    """Return the engine of that name. Raises UnknownEngine with the existing names."""
    spec = find(name)
    if spec is None:
        raise UnknownEngine(
            refusal(name) or f"unknown engine {name!r}: {alternatives(names())}",
            fix=f"name one that there is: {alternatives(names())}",
        )
    return spec


def alternatives(words: tuple[str, ...]) -> str:
    """Return words as "a, b or c"."""
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1]))) if words else "none"
