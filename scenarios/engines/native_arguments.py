"""Converts canonical parameters to native arguments and back, by the tables of each engine's spec.

Arguments of any origin can be read back: ours, edited, a user's own mapping, another framework's recording. Standard
library only, because the judge uses it too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scenarios.engines import canonical, registry
from scenarios.engines.native import Native, Values
from scenarios.engines.spec import fits_the_context
from scenarios.settings import Sampling


def table(part: str, engine: str) -> Mapping[str, Native]:
    """Return the native arguments of an engine by canonical name; {} for an unknown engine."""
    spec = registry.find(engine)
    if part == "engine":
        return {} if spec is None else spec.engine_arguments
    arguments = ((parameter.name, parameter.argument(engine)) for parameter in canonical.SAMPLING)
    return {name: argument for name, argument in arguments if argument is not None}


def sampling_arguments(backend: str, sampling: Sampling) -> dict[str, Any]:
    """Return the native sampling arguments of our own mapping, with which the engine's own sampler is called."""
    spec = registry.find(backend)
    native = {
        argument.name: argument.write(getattr(sampling, name)) for name, argument in table("sampling", backend).items()
    }
    return native | ({} if spec is None else dict(spec.always))


def engine_given(backend: str, native: Values) -> dict[str, Any]:
    """Return the canonical engine parameters that `native` amounts to; None where the engine decides by itself."""
    return {name: argument.value_in(native) for name, argument in table("engine", backend).items()}


def sampling_given(backend: str, native: Values) -> dict[str, Any]:
    """Return the canonical sampling parameters that `native` amounts to."""
    filled = {name: value for name, value in native.items() if value is not None}
    return {name: argument.value_in(filled) for name, argument in table("sampling", backend).items()}


def most_scored(backend: str, resolved: Values) -> int:
    """Return how many tokens of a sequence an engine scores at most, by what it resolved; 0 where it does not tell."""
    spec = registry.find(backend)
    return fits_the_context(resolved) if spec is None else spec.most_scored(resolved)


def as_sampling(values: Values) -> Sampling:
    return Sampling(
        **{parameter.name: values.get(parameter.name, parameter.default) for parameter in canonical.SAMPLING}
    )


def unlike(backend: str, values: Values) -> dict[str, str]:
    """Return canonical parameters that arrive with their values but mean something else in this engine: name -> what.

    This concerns only the engine's own sampler: a coupled draw applies every filter in the canonical order.
    """
    spec = registry.find(backend)
    return {} if spec is None else spec.unlike(values)
