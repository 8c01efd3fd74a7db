"""The engines that there are: ours, one folder each, and those that installed packages bring.

A package adds one through the entry point group `rlhf_harness.engines`: the entry's name is the engine's, its value an
`EngineSpec`. Nothing of an engine is imported here, nor torch, nor Ray.
"""

from __future__ import annotations

import functools
import importlib
from importlib.metadata import entry_points

from scenarios.engines.engine import ParameterRefused
from scenarios.engines.spec import EngineSpec

GROUP = "rlhf_harness.engines"
BUILT_IN = ("hf", "vllm", "sglang")


class UnknownEngine(ParameterRefused):
    """There is no engine of that name; the message lists those that there are."""


@functools.cache
def _loaded() -> tuple[dict[str, EngineSpec], dict[str, str]]:
    """Every engine by its name, ours first; and why an entry point brings none, by its name."""
    every = {name: importlib.import_module(f"scenarios.engines.{name}").SPEC for name in BUILT_IN}
    refused: dict[str, str] = {}
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        try:
            spec = entry.load()
        except Exception as error:  # somebody else's package may raise anything; its text is what fixes it
            refused[entry.name] = f"the engine {entry.name!r} ({entry.value}) cannot be loaded: {error}"
            continue
        if isinstance(spec, EngineSpec) and spec.name == entry.name and entry.name not in every:
            every[spec.name] = spec
        else:
            refused[entry.name] = f"the entry point {entry.name!r} ({entry.value}) is no new EngineSpec of that name"
    return every, refused


def specs() -> dict[str, EngineSpec]:
    """Every engine by its name, ours first. A broken package of somebody else's is left out: see `refusal`."""
    return _loaded()[0]


def refusal(name: str) -> str:
    """Why the entry point of that name brings no engine; empty where there is none, or it does."""
    return _loaded()[1].get(name, "")


def names(*, embedded: bool | None = None) -> tuple[str, ...]:
    """The names of all engines, or of those that are embedded or not."""
    return tuple(name for name, spec in specs().items() if embedded is None or spec.embedded == embedded)


def find(name: str) -> EngineSpec | None:
    """The engine of that name, if there is one: recordings may name any."""
    return specs().get(name)


def get(name: str) -> EngineSpec:
    """The engine of that name. Raises UnknownEngine with those that there are."""
    spec = find(name)
    if spec is None:
        raise UnknownEngine(refusal(name) or f"unknown engine {name!r}: {alternatives(names())}")
    return spec


def alternatives(words: tuple[str, ...]) -> str:
    """a, b or c."""
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1]))) if words else "none"
