"""One value of a record as Python has it, or missing.

A recording may be a foreign writer's: any key may be absent, and any value of another type. Both are *missing*: no
error, and no value that the writer could have meant. What is missing is None where a text, a whole number, a flag or a
list is expected, NaN where a measured number is, and an empty mapping where named values are. A check that needs what
is missing is not tested.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from probes.format import mapping, names, number

Parameters = Mapping[str, Any]  # name -> JSON value; empty where none were recorded


def text(value: Any) -> str | None:
    """A recorded text."""
    return value if isinstance(value, str) else None


def filled_text(value: Any) -> str | None:
    """A recorded text with a letter in it: an empty name names nothing."""
    return text(value) or None


def written(value: Any) -> str | None:
    """A recorded word that is compared with those that the judge knows. A value of another type is an unknown word, not
    a missing one: an unknown mode passes nothing."""
    return None if value is None else str(value)


def integer(value: Any) -> int | None:
    """A recorded whole number, as JSON writes one."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def whole_number(value: Any) -> int | None:
    """A recorded whole number in any notation that `float` reads."""
    if (exact := integer(value)) is not None:
        return exact
    measured = number(value)
    return int(measured) if measured.is_integer() else None


def flag(value: Any) -> bool | None:
    """A recorded true or false."""
    return value if isinstance(value, bool) else None


def parameters(value: Any) -> Parameters:
    """Recorded values by name."""
    return mapping(value)


def equal_values(first: Any, second: Any) -> bool:
    """Whether two values are equal, tuples and lists alike, since JSON has no tuples."""
    first, second = (list(value) if isinstance(value, tuple) else value for value in (first, second))
    return bool(first == second)


def texts_by_name(value: Any) -> Mapping[str, str]:
    """Recorded texts by name; "" for a value that is no text. Where all are texts, the recorded mapping itself, since
    digests of a thousand tensors are not worth a copy."""
    by_name = mapping(value)
    if all(isinstance(named, str) for named in by_name.values()):
        return by_name
    return {name: text(named) or "" for name, named in by_name.items()}


def lists_by_name(value: Any) -> Mapping[str, tuple[str, ...]]:
    """Recorded lists of names by name, without those that are no lists."""
    return {name: tuple(names(named)) for name, named in mapping(value).items() if isinstance(named, list)}


def name_list(value: Any) -> tuple[str, ...] | None:
    """A recorded list of names."""
    return tuple(names(value)) if isinstance(value, list) else None


def token_ids(value: Any) -> tuple[int, ...] | None:
    """A recorded list of token ids; what is no id in it is -1, which no token has."""
    if not isinstance(value, list | tuple):
        return None
    return tuple(-1 if (token := whole_number(member)) is None else token for member in value)


def sample_numbers(value: Any) -> tuple[int, ...] | None:
    """A recorded list of numbers of samples; what is no number in it is -1, which no sample has."""
    return token_ids(value)
