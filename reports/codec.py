"""Converts frozen dataclasses to the JSON on disk and back, strictly: an unknown key is refused, like a missing one.

NaN and infinity are the strings "nan", "inf" and "-inf"; a field of type `Number` reads them back as floats.
"""

from __future__ import annotations

import json
import math
import numbers
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    Number = float
else:
    Number = numbers.Real  # a type that msgspec passes to the hook `number`

T = TypeVar("T")
_NON_FINITE = ("nan", "inf", "-inf")


def builtins(value: Any) -> Any:
    """Return a dataclass as plain values, as they are written."""
    import msgspec

    return _written(msgspec.to_builtins(value, enc_hook=_foreign, str_keys=False))


def dumps(value: Any) -> str:
    """Return the text of a file: plain values, indented, with a newline at the end."""
    return json.dumps(value, indent=2, allow_nan=False, default=str) + "\n"


def convert(data: Any, kind: type[T], *, version: int | None = None) -> T:
    """Return the dataclass that `builtins` came from.

    Raises ValueError with one sentence that names the place where `data` does not fit, or a `schema_version` that is
    not `version`.
    """
    import msgspec

    name = kind.__name__.lower()
    if version is not None:
        schema_version = data.get("schema_version") if isinstance(data, dict) else None
        if schema_version is None:
            raise ValueError(f"this is no {name}: it has no schema_version")
        if schema_version != version:
            raise ValueError(f"{name} schema {schema_version!r} is not {version}, which this installation reads")
    try:
        made = msgspec.convert(data, kind, dec_hook=number)
    except msgspec.ValidationError as error:
        raise ValueError(f"{error}") from error
    if unknown := _unknown(data, msgspec.to_builtins(made, enc_hook=_foreign), name):
        raise ValueError(f"there is no field {unknown}")
    return made


def _unknown(data: Any, kept: Any, place: str) -> str:
    """Return the place of the first key in `data` that was not kept; empty without one."""
    if isinstance(data, dict) and isinstance(kept, dict):
        for key, value in data.items():
            if key not in kept:
                return f"{place}.{key}"
            if unknown_place := _unknown(value, kept[key], f"{place}.{key}"):
                return unknown_place
    elif isinstance(data, (list, tuple)) and isinstance(kept, (list, tuple)):
        for index, (value, kept_value) in enumerate(zip(data, kept, strict=False)):
            if unknown_place := _unknown(value, kept_value, f"{place}[{index}]"):
                return unknown_place
    return ""


def number(kind: Any, value: Any) -> Any:
    """Return a value of type `Number`: a hook of msgspec. Raises ValueError for anything else."""
    if value in _NON_FINITE:
        return float(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"Expected a number, got {value!r}")
    return value


def _foreign(value: Any) -> Any:
    """Convert values in free fields that are not builtins: a NumPy or torch scalar to its number, a read-only mapping
    to a dictionary, others to their text.
    """
    if isinstance(value, Mapping):
        return dict(value)
    return value.item() if hasattr(value, "item") and getattr(value, "shape", None) == () else str(value)


def _written(value: Any) -> Any:
    """Replace numbers that JSON lacks by strings, and leave out an empty fix."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {str(key): _written(item) for key, item in value.items() if (key, item) != ("fix", "")}
    if isinstance(value, (list, tuple)):
        return [_written(item) for item in value]
    return value
