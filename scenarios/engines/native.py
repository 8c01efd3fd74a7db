"""One native argument of an engine: how a canonical value is written as one, and how one is read back.

Standard library only, and a leaf: each engine's folder makes its tables of it, the judge reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Values = Mapping[str, Any]
OFF = 1 << 30  # TOP_K_ALL of SGLang: top-k switched off


def _unchanged(value: Any, native: Values) -> Any:
    return value


@dataclass(frozen=True)
class Native:
    """One native argument: its name, what the engine does without it (None: it decides by itself, or says nothing),
    what a value means in canonical terms, a note on it for docs/reference/parameters.md, and how our own mapping writes
    a canonical value. `rejects`: why the engine does not start or sample with a value; empty where it takes it."""

    name: str
    default: Any = None
    read: Callable[[Any, Values], Any] = _unchanged
    note: str = ""
    write: Callable[[Any], Any] = lambda value: value
    rejects: Callable[[Any], str] = lambda value: ""

    def value_in(self, native: Values) -> Any:
        value = native.get(self.name)
        return self.default if value is None else self.read(value, native)


_WITH = " with "


def together(*names: str) -> str:
    """The name, in recordings, of canonical parameters that mean something else in each other's company."""
    return _WITH.join(names)


def apart(name: str) -> tuple[str, ...]:
    """The parameters of such a name."""
    return tuple(name.split(_WITH))


def negated(value: Any, native: Values) -> bool:
    return not value


def opposite(value: Any) -> bool:
    """How a canonical switch is written as its negation, which `negated` reads."""
    return not value


def ids(value: Any, native: Values) -> tuple[int, ...]:
    return tuple(value)


def texts(value: Any, native: Values) -> tuple[str, ...]:
    """One text, or several."""
    return (value,) if isinstance(value, str) else tuple(value)


def biases(value: Any, native: Values) -> dict[str, float]:
    """Token ids are numbers in Python and text in JSON."""
    return {str(token): bias for token, bias in value.items()}


def top_k(value: Any, native: Values) -> int:
    return -1 if value <= 0 or value >= OFF else int(value)
