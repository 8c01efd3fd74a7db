"""Causes by their printed names, as tests write them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from reports.model import Cause, CauseKey

NO_HISTORY: Any = SimpleNamespace(alone=False, sides=())  # evidence of no step


def key(name: str) -> CauseKey:
    """STALE_WEIGHTS(a, b) as its family and its parts."""
    family, _, parts = name.removesuffix(")").partition("(")
    many = parts.endswith((" tensors", " behind", " versions")) or parts.startswith("frozen at version")
    return CauseKey(family, tuple(filter(None, parts.split(", "))), many)


def of(name: str, *args: Any, **named: Any) -> Cause:
    return Cause.of(key(name), *args, **named)
