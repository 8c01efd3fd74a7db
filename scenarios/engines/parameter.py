"""What is known of one canonical parameter in every engine. A leaf of the standard library: settings are made of it."""

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
    """Another value of a switch or of a count."""
    return not value if isinstance(value, bool) else value + 1


@dataclass(frozen=True)
class Axis:
    """How a number is sought by a fit: the values of the coarse grid, the first step of the descent, the least and the
    most. `turn`: of two that explain as much the one with the earlier turn is named."""

    grid: tuple[float, ...]
    step: float
    least: float
    most: float
    turn: int


@dataclass(frozen=True)
class Parameter:
    """`low`, `high`: the least and the largest value; `positive`: above 0. `off`: the value that switches it off.
    `variant`: another value, which must move the native arguments. `draws`: it changes which token is drawn, and no raw
    log-probability. `place`: in the order in which filters are applied, from 1; 0: no filter. `coupled`: the coupled
    draw applies it, so that the engine is not given it. `trap`: how engines differ in it. `axis`: where a fit seeks it.

    `more`: being given more than was asked takes nothing away. `results`: another value may change results, not only
    speed. `requested`: False where no setting asks for it, and engines are left to their defaults. `comparable`: False
    where the same value amounts to something else in each engine. `carried`: no scenario has it, and a mapping from
    one engine to another has to carry it.
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
        """The engine's own argument for it; of sampling the one of this name, where its spec says nothing else."""
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
        """The engine's own name of it; empty where it has none."""
        argument = self.argument(engine)
        return argument.name if argument is not None else ""

    def note(self, engine: str) -> str:
        """What it means in this engine, where that is worth a word."""
        argument, spec = self.argument(engine), registry.find(engine)
        if argument is not None:
            return argument.note
        return "" if spec is None else spec.without_argument.get(self.name, "")

    def fits(self, requested: Any, got: Any) -> bool:
        """Is what an engine was given, or resolved, what was asked? More counts where it takes nothing away."""
        if requested == got:
            return True
        return self.more and isinstance(requested, int | float) and isinstance(got, int | float) and got >= requested

    def restricts(self, value: float) -> bool:
        """Does a filter of this value take tokens away? Engines write a top-k that is off as -1 or 0."""
        return bool(value < self.off if self.off > 0 else value > 0)


def sampling(default: Default, concept: str, trap: str, **more: Any) -> Default:
    """A field of the settings with its entry in the table."""
    entry = Parameter("", "sampling", concept, trap, default=default, **more)
    return cast(Default, dataclasses.field(default=default, metadata={ENTRY: entry}))


def entries(settings: type[Any]) -> tuple[Parameter, ...]:
    """The entries of all fields that have one, in their order."""
    fields = (field for field in dataclasses.fields(settings) if ENTRY in field.metadata)
    return tuple(dataclasses.replace(field.metadata[ENTRY], name=field.name) for field in fields)
