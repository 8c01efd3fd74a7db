"""What is known about one canonical parameter in every engine. It imports only the standard library; settings
use it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, cast

from scenarios.engines import registry
from scenarios.engines.native import Native

Default = TypeVar("Default")
ENTRY = "canonical parameter"  # in the metadata of a field of the settings


def _next(value: Any) -> Any:
    """Return another value of a switch or of a count."""
    return not value if isinstance(value, bool) else value + 1


@dataclass(frozen=True)
class Axis:
    """How a fit searches a number.

    `grid`: the coarse grid. `step`: the first step of the descent. `least`, `most`: the range. `turn`: of two
    parameters that explain as much, the one with the lower turn is named.
    """

    grid: tuple[float, ...]
    step: float
    least: float
    most: float
    turn: int


@dataclass(frozen=True)
class Parameter:
    """One canonical parameter.

    `name`: canonical. `part`: of the engine, or of sampling. `concept`: its name in words. `trap`: how engines differ
    in it. `low`, `high`: the least and the largest value. `positive`: the value must be above 0. `off`: the value
    that switches it off. `variant`: returns another value, which must change the native arguments. `draws`: it
    changes which token is drawn, but no raw log-probability. `place`: its place in the order of filters, from 1; 0
    where it is no filter. `coupled`: the coupled draw applies it, so the engine does not get it. `more`: a larger
    value than requested loses nothing. `results`: another value may change results, not only speed. `requested`:
    False where no setting asks for it and engines keep their defaults. `comparable`: False where the same value has
    another effect in each engine. `carried`: no scenario has it, but a mapping from one engine to another must carry
    it over. `default`: its default. `axis`: where a fit searches it.
    """

    name: str
    part: Literal["engine", "sampling"]
    concept: str
    trap: str
    low: float | None = None
    high: float | None = None
    positive: bool = False
    off: Any = None
    variant: Callable[[Any], Any] = _next
    draws: bool = False
    place: int = 0
    coupled: bool = False
    more: bool = False
    results: bool = True
    requested: bool = True
    comparable: bool = True
    carried: bool = False
    default: Any = None
    axis: Axis | None = None

    def argument(self, engine: str) -> Native | None:
        """Return the engine's own argument for it; None without one.

        For sampling, that is the argument of the same name where the engine's spec says nothing else.
        """
        spec = registry.find(engine)
        if spec is None:
            return None
        if self.carried:
            return spec.carried_arguments.get(self.name)
        named = spec.engine_arguments if self.part == "engine" else spec.sampling_arguments
        if self.part == "engine" or self.name in named:
            return named.get(self.name)
        return Native(self.name, self.default)

    def native(self, engine: str) -> str:
        """Return the engine's own name for it; empty where it has none."""
        argument = self.argument(engine)
        return argument.name if argument is not None else ""

    def note(self, engine: str) -> str:
        """Return what it means in this engine, where that needs a note."""
        argument, spec = self.argument(engine), registry.find(engine)
        if argument is not None:
            return argument.note
        return "" if spec is None else spec.without_argument.get(self.name, "")

    def fits(self, requested: Any, got: Any) -> bool:
        """Whether an engine got, or resolved, what was requested. More also counts where it loses nothing."""
        if requested == got:
            return True
        return self.more and isinstance(requested, int | float) and isinstance(got, int | float) and got >= requested

    def restricts(self, value: float) -> bool:
        """Whether a filter of this value removes tokens. Engines write a top-k that is off as -1 or 0."""
        return bool(value < self.off if self.off > 0 else value > 0)


def sampling(default: Default, concept: str, trap: str, **more: Any) -> Default:
    """Return a field of the settings that carries its entry of the table."""
    entry = Parameter("", "sampling", concept, trap, default=default, **more)
    return cast(Default, dataclasses.field(default=default, metadata={ENTRY: entry}))


def entries(settings: type[Any]) -> tuple[Parameter, ...]:
    """Return the entries of all fields that have one, in order."""
    fields = (field for field in dataclasses.fields(settings) if ENTRY in field.metadata)
    return tuple(dataclasses.replace(field.metadata[ENTRY], name=field.name) for field in fields)
