"""The engines that there are: ours, one folder each, and those that installed packages bring.

A package adds one through the entry point group `rlhf_harness.engines`: the entry's name is the engine's, its value an
`EngineSpec`. Nothing of an engine is imported here, nor torch, nor Ray.
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
from scenarios.engines.engine import EngineError, ParameterRefused
from scenarios.engines.spec import EngineSpec

GROUP = "rlhf_harness.engines"
BUILT_IN = ("hf", "vllm", "sglang")
NAME = r"[\w.-]+"  # what may stand before an @ on the command line
MEANT = (EngineError, ParameterRefused)  # what an engine's code raises on purpose


class UnknownEngine(ParameterRefused):
    """There is no engine of that name; the message lists those that there are."""


@functools.cache
def _loaded() -> tuple[dict[str, EngineSpec], dict[str, Plugin], tuple[PluginError, ...]]:
    """Every engine by its name, ours first; the plug-ins that brought the others; and why some bring none."""
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
    """Every engine by its name, ours first. A broken package of somebody else's is left out: see `refused`."""
    return _loaded()[0]


def refused() -> tuple[PluginError, ...]:
    """The plug-ins that bring no engine, and why."""
    return _loaded()[2]


def home(name: str) -> Plugin | None:
    """The plug-in that brings an engine; None for ours."""
    return _loaded()[1].get(name)


def refusal(name: str) -> str:
    """Why a plug-in of that name brings no engine; empty where there is none, or it does."""
    return "; ".join(str(error) for error in refused() if error.name == name)


def guarded(name: str) -> AbstractContextManager[None]:
    """Around the code of an engine: what another package's raises is a PluginError that names it."""
    plugin = _loaded()[1].get(name)
    return plugin.guarded(allowed=MEANT) if plugin is not None else nullcontext()


def names(*, embedded: bool | None = None) -> tuple[str, ...]:
    """The names of all engines, or of those that are embedded or not."""
    return tuple(name for name, spec in specs().items() if embedded is None or spec.embedded == embedded)


def processes() -> dict[str, EngineProcess]:
    """How the processes of each engine are told."""
    return {name: spec.process for name, spec in specs().items()}


@functools.cache
def variables() -> tuple[str, ...]:
    """How the names of variables begin that only one engine's code reads."""
    return tuple(name for spec in specs().values() for name in spec.process.variables)


def find(name: str) -> EngineSpec | None:
    """The engine of that name, if there is one: recordings may name any."""
    return specs().get(name)


def get(name: str) -> EngineSpec:
    """The engine of that name. Raises UnknownEngine with those that there are."""
    spec = find(name)
    if spec is None:
        raise UnknownEngine(
            refusal(name) or f"unknown engine {name!r}: {alternatives(names())}",
            fix=f"name one that there is: {alternatives(names())}",
        )
    return spec


def alternatives(words: tuple[str, ...]) -> str:
    """a, b or c."""
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1]))) if words else "none"
