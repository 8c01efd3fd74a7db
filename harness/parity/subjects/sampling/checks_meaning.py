"""Sentences on what became of a parameter on its way to an engine, from the canonical table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scenarios.engines import registry
from scenarios.engines.canonical import parameter_of


def title(engine: str | None) -> str:
    """Return the engine's name for use in a sentence."""
    spec = registry.find(engine or "")
    return engine or "the engine" if spec is None else spec.title


def lost(
    name: str, engine: str, asked_value: Any, given_value: Any, native: Mapping[str, Any], *, dropped: bool = False
) -> str:
    """Return a sentence on what became of parameter `name` in this engine. `dropped`: no native argument follows it."""
    meaning = parameter_of(name)
    argument = meaning.native(engine)
    trap = f" ({meaning.trap})" if meaning.trap else ""
    if not argument:
        return f"{name}: asked {asked_value!r}, {title(engine)} was given {given_value!r}{trap}"
    if native.get(argument) is None:
        consequence = f", which then is {given_value!r}" if given_value is not None else ""
        return f"{name}: asked {asked_value!r}, {title(engine)} was given no {argument}{consequence}: dropped{trap}"
    sets = f"{title(engine)}'s {argument} = {native[argument]!r}"
    if not meaning.requested:
        return f"{name}: nothing was asked, {sets}{trap}"
    sentence = f"{name}: asked {asked_value!r}, {sets}"
    if isinstance(asked_value, bool) and given_value == (not asked_value) and not dropped:
        return f"{sentence}: inverted{trap}"
    if dropped:
        return f"{sentence} whatever is asked: fixed{trap}"
    return f"{sentence}, which is {given_value!r}{trap}" if given_value != native[argument] else sentence + trap
