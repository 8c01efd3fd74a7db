"""Counts that are summed step by step."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Self


@dataclass(frozen=True)
class Tally:
    """Counts that are added field by field: those of a run are the sum of those of its steps."""

    def __add__(self, more: Self) -> Self:
        return type(self)(*(getattr(self, count.name) + getattr(more, count.name) for count in fields(self)))
