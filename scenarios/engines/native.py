"""One native argument of an engine: how a canonical value is written as a native one, and read back.

Standard library only; it imports no other module of ours. Each engine's folder builds its tables from it, and the
judge reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Values = Mapping[str, Any]
NUMPY_SEEDS = 2**32 - 1  # the largest seed of numpy, which vLLM and SGLang seed at their start
OFF = 1 << 30  # TOP_K_ALL of SGLang: top-k switched off


def _unchanged(value: Any, native: Values) -> Any:
    return value


@dataclass(frozen=True)
class Native:
    """One native argument.

    `name`: the engine's name. `default`: what the engine does without it; None: it decides by itself, or does not
    tell. `read`: converts a native value to a canonical one. `note`: a note for docs/reference/parameters.md.
    `write`: how our own mapping writes a canonical value. `rejects`: why the engine does not accept a value; empty
    where it does. `special`: native values that mean more than their number -> what they mean, with the source.
    """

    name: str
    default: Any = None
    read: Callable[[Any, Values], Any] = _unchanged
    note: str = ""
    write: Callable[[Any], Any] = lambda value: value
    rejects: Callable[[Any], str] = lambda value: ""
    special: Mapping[Any, str] = field(default_factory=dict)

    def value_in(self, native: Values) -> Any:
        value = native.get(self.name)
        return self.default if value is None else self.read(value, native)


_WITH = " with "


def together(*names: str) -> str:
    """Return the name, in recordings, of canonical parameters whose meaning changes when they are used together."""
    return _WITH.join(names)


def apart(name: str) -> tuple[str, ...]:
    """Return the parameters of a name that `together` made."""
    return tuple(name.split(_WITH))


def seed_up_to(most: int) -> Callable[[Any], str]:
    """Return what says why a value is no seed from 0 to `most`."""

    def rejects(value: Any) -> str:
        try:
            is_seed = 0 <= int(value) <= most
        except (TypeError, ValueError, OverflowError):
            is_seed = False
        return "" if is_seed else f"a seed is a whole number from 0 to {most}"

    return rejects


def negated(value: Any, native: Values) -> bool:
    return not value


def opposite(value: Any) -> bool:
    """Return the negation of a canonical switch, which `negated` reads back."""
    return not value


def ids(value: Any, native: Values) -> tuple[int, ...]:
    return tuple(value)


def texts(value: Any, native: Values) -> tuple[str, ...]:
    """Return one text or several as a tuple."""
    return (value,) if isinstance(value, str) else tuple(value)


def biases(value: Any, native: Values) -> dict[str, float]:
    """Return biases keyed by token ids as text: they are numbers in Python and text in JSON."""
    return {str(token): bias for token, bias in value.items()}


def top_k(value: Any, native: Values) -> int:
    return -1 if value <= 0 or value >= OFF else int(value)
