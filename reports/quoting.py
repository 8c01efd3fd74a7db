"""The bounds of what a verdict quotes from files: as many names and lines as a reader can use, and how many more.

A file may list any number of them. Lists of numbers are not cut: steps and samples bound those.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

from reports.model import Finding

T = TypeVar("T")
MOST = 500  # names, lines or findings of one list, and keys of one table; a large model has some 300 tensors
LETTERS = 4_000  # of one text; the longest line of a real verdict has some 600


def bounded(value: T) -> T:
    """Return a verdict, or a part of one, whose lists, tables and texts are within the bounds.

    What is cut ends with "and N more". A part that nothing is cut from is the same object.
    """
    result: Any = _bounded(value)
    return result  # type: ignore[no-any-return]


def _bounded(value: Any) -> Any:
    if isinstance(value, str):
        return value if len(value) <= LETTERS else f"{value[:LETTERS]} … and {len(value) - LETTERS:,} letters more"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}
        changed = {name: after for name, part in parts.items() if (after := _bounded(part)) is not part}
        return dataclasses.replace(value, **changed) if changed else value
    if isinstance(value, Mapping):
        return _table(value)
    if isinstance(value, list | tuple) and value and not isinstance(value[0], int | float):
        return _list(value)
    return value


def _table(table: Mapping[Any, Any]) -> Any:
    quoted = {_bounded(key): _bounded(part) for key, part in [*table.items()][:MOST]}
    if len(table) > MOST and all(isinstance(key, str) for key in table):
        return {**quoted, "…": _more(len(table))}
    if len(table) > MOST:  # by step or by version
        quoted |= {key: _bounded(part) for key, part in [*table.items()][MOST:]}
    return table if all(key in table and table[key] is part for key, part in quoted.items()) else quoted


def _list(items: list[Any] | tuple[Any, ...]) -> Any:
    quoted = [_bounded(item) for item in items[:MOST]]
    if len(items) > MOST and isinstance(items[0], str | Finding):
        return [*quoted, _more(len(items)) if isinstance(items[0], str) else Finding("more", _more(len(items)))]
    quoted += [_bounded(item) for item in items[MOST:]]
    return items if all(after is item for after, item in zip(quoted, items, strict=True)) else quoted


def _more(count: int) -> str:
    return f"and {count - MOST:,} more"
