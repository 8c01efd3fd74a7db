"""Read-only collections of evidence, and back to plain ones for the details of a verdict."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeVar

KeyT = TypeVar("KeyT")
ValueT = TypeVar("ValueT")


def read_only(values: Mapping[KeyT, ValueT]) -> Mapping[KeyT, ValueT]:
    """Return a copy that cannot be written."""
    return MappingProxyType(dict(values))


def frozen(value: Any) -> Any:
    """Return a list as a tuple, a set as a frozen one, and a dictionary as a read-only one, at every depth."""
    if isinstance(value, dict):
        return MappingProxyType({key: frozen(inner) for key, inner in value.items()})
    if isinstance(value, set):
        return frozenset(value)
    return tuple(map(frozen, value)) if isinstance(value, list) else value


def plain(value: Any) -> Any:
    """Return read-only collections as dictionaries and lists, as they are read back from JSON; a set is sorted."""
    if isinstance(value, Mapping):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, frozenset):
        return sorted(value)
    return [plain(inner) for inner in value] if type(value) in (tuple, list) else value
