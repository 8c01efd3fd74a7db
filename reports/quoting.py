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
        return _text(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _record(value)
    if isinstance(value, Mapping):
        return _table(value)
    if isinstance(value, list | tuple):
        return _list(value)
    return value


def _text(text: str) -> str:
    return text if len(text) <= LETTERS else f"{text[:LETTERS]} … and {len(text) - LETTERS:,} letters more"


def _record(record: Any) -> Any:
    changed = {}
    for field in dataclasses.fields(record):
        part = getattr(record, field.name)
        if field.init and (quoted := _bounded(part)) is not part:
            changed[field.name] = quoted
    return dataclasses.replace(record, **changed) if changed else record


def _table(table: Mapping[Any, Any]) -> Any:
    items = [*table.items()]
    has_names = len(table) > MOST and all(isinstance(key, str) for key in table)
    if has_names:  # a table by step or by version is not cut
        items = items[:MOST]
    quoted = {_bounded(key): _bounded(part) for key, part in items}
    if has_names:
        return {**quoted, "…": _more(len(table))}
    unchanged = all(key in table and table[key] is part for key, part in quoted.items())
    return table if unchanged else quoted


def _list(items: list[Any] | tuple[Any, ...]) -> Any:
    if not items or isinstance(items[0], int | float):
        return items
    if len(items) > MOST and isinstance(items[0], str):
        return [*map(_bounded, items[:MOST]), _more(len(items))]
    if len(items) > MOST and isinstance(items[0], Finding):
        return [*map(_bounded, items[:MOST]), Finding("more", _more(len(items)))]
    quoted = [*map(_bounded, items)]
    unchanged = all(after is item for after, item in zip(quoted, items, strict=True))
    return items if unchanged else quoted


def _more(count: int) -> str:
    return f"and {count - MOST:,} more"
