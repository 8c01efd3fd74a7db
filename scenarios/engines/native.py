"""One native argument of an engine: how a canonical value is written as a native one, and read back.

Standard library only; it imports no other module of ours. Each engine's folder builds its tables from it, and the
judge reads them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Values = Mapping[str, Any]
NUMPY_SEEDS = 2**32 - 1  # the largest seed of numpy, which vLLM and SGLang seed at their start
OFF = 1 << 30  # TOP_K_ALL of SGLang: top-k switched off


# Spellings of a switch that pydantic converts (its documentation, "Conversion Table", bool).
_SWITCHES = {"true": True, "t": True, "yes": True, "y": True, "on": True, "1": True,
             "false": False, "f": False, "no": False, "n": False, "off": False, "0": False}  # fmt: skip


def _unchanged(value: Any, native: Values) -> Any:
    return value


@dataclass(frozen=True)
class Native:
    """One native argument.

    `name`: the engine's name. `default`: what the engine does without it; None: it decides by itself, or does not
    tell. `read`: converts a native value to a canonical one. `note`: a note for docs/reference/parameters.md.
    `write`: how our own mapping writes a canonical value. `rejects`: why the engine does not accept a value; empty
    where it does. `special`: native values that mean more than their number -> what they mean, with the source.
    `converts`: what the engine makes of a string before it uses it; None: it uses the string.
    """

    name: str
    default: Any = None
    read: Callable[[Any, Values], Any] = _unchanged
    note: str = ""
    write: Callable[[Any], Any] = lambda value: value
    rejects: Callable[[Any], str] = lambda value: ""
    special: Mapping[Any, str] = field(default_factory=dict)
    converts: Callable[[str], Any] | None = None

    def value_in(self, native: Values) -> Any:
        value = self._converted(native.get(self.name))
        return self.default if value is None else self.read(value, native)

    def another_type(self, native: Values, example: Any) -> str:
        """Return the type of the value, where it is not one that the engine takes: "a string"; empty where it may be.

        `example`: a value that the engine takes. Only a type with which the engine cannot compute is reported.
        """
        value = self._converted(native.get(self.name))
        if value is None:
            return ""
        if isinstance(example, int | float):
            is_another = isinstance(value, str | bytes | list | tuple | dict)
        else:
            is_another = isinstance(example, list | tuple | dict) and isinstance(value, int | float)
        if not is_another:
            try:
                self.value_in(native)
            except (TypeError, ValueError, AttributeError, OverflowError):
                is_another = True
        return type_text(value) if is_another else ""

    def _converted(self, value: Any) -> Any:
        if not isinstance(value, str) or self.converts is None:
            return value
        try:
            return self.converts(value)
        except ValueError:
            return value


def switch(text: str) -> bool:
    """Return the switch that pydantic makes of a string. Raises ValueError."""
    if text.lower() not in _SWITCHES:
        raise ValueError(text)
    return _SWITCHES[text.lower()]


def whole(text: str) -> int:
    """Return the whole number that pydantic makes of a string: 8 of "8" and of "8.0". Raises ValueError."""
    number, _, rest = text.strip().partition(".")
    if rest.strip("0"):
        raise ValueError(text)
    return int(number)


def type_text(value: Any) -> str:
    """Return the type of a value in words."""
    if isinstance(value, float) and not math.isfinite(value):
        return "a number that is not finite"
    names = ((bool, "True or False"), (int, "a whole number"), (float, "a number"), (str, "a string"),
             (list | tuple, "a list"), (dict, "a dictionary"))  # fmt: skip
    return next((name for kind, name in names if isinstance(value, kind)), f"of type {type(value).__name__}")


def same(first: Any, second: Any) -> bool:
    """Whether two native values are equal. NaN is equal to NaN here, within a list too."""
    return bool(first == second) or repr(first) == repr(second)


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


def dtype(value: Any, native: Values) -> Any:
    """Return a data type under its one name: half is float16, and float is float32."""
    return (
        {"half": "float16", "float": "float32", "bf16": "bfloat16"}.get(value, value)
        if isinstance(value, str)
        else value
    )


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
