"""Native arguments from canonical parameters, and back, by the tables of each engine's spec.

Arguments are read back from anywhere: ours, edited, a user's own mapping, another framework's recording. Standard
library only: the judge uses it too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scenarios.engines import canonical, registry
from scenarios.engines.native import Native, Values
from scenarios.engines.spec import fits_the_context
from scenarios.settings import Sampling


def table(part: str, engine: str) -> Mapping[str, Native]:
    """The native arguments of an engine by canonical name; {} of an engine that is not known."""
    spec = registry.find(engine)
    if part == "engine":
        return {} if spec is None else spec.engine_arguments
    arguments = ((parameter.name, parameter.argument(engine)) for parameter in canonical.SAMPLING)
    return {name: argument for name, argument in arguments if argument is not None}


def sampling_arguments(backend: str, sampling: Sampling) -> dict[str, Any]:
    """Native sampling arguments of our own mapping, as the engine's own sampler is called with."""
    spec = registry.find(backend)
    native = {
        argument.name: argument.write(getattr(sampling, name)) for name, argument in table("sampling", backend).items()
    }
    return native | ({} if spec is None else dict(spec.always))


def engine_given(backend: str, native: Values) -> dict[str, Any]:
    """Canonical engine parameters that `native` amounts to; None where the engine would decide by itself."""
    return {name: argument.value_in(native) for name, argument in table("engine", backend).items()}


def sampling_given(backend: str, native: Values) -> dict[str, Any]:
    """Canonical sampling parameters that `native` amounts to."""
    filled = {name: value for name, value in native.items() if value is not None}
    return {name: argument.value_in(filled) for name, argument in table("sampling", backend).items()}


def most_scored(backend: str, resolved: Values) -> int:
    """Tokens of the longest sequence that an engine scores, by what it resolved; 0 where it does not say."""
    spec = registry.find(backend)
    return fits_the_context(resolved) if spec is None else spec.most_scored(resolved)


def as_sampling(values: Values) -> Sampling:
    return Sampling(
        **{parameter.name: values.get(parameter.name, parameter.default) for parameter in canonical.SAMPLING}
    )


def unlike(backend: str, values: Values) -> dict[str, str]:
    """Canonical parameters that were given with their values, and mean something else in this engine: name -> what.

    Only the engine's own sampler is concerned: a coupled draw applies every filter in the canonical order.
    """
    spec = registry.find(backend)
    return {} if spec is None else spec.unlike(values)
