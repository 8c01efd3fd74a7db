"""What the recordings of a comparison lack. The stages that read them note it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Completeness:
    """What the recordings lack, and what stands in one of them only."""

    missing: tuple[str, ...] = ()
    unmatched: tuple[str, ...] = ()
    repeated: tuple[str, ...] = ()  # numbers that several samples have: they align nothing
    # What -> step -> whether each side recorded it completely. Read by `gaps`.
    by_step: Mapping[str, Mapping[int, tuple[bool, ...]]] = field(default_factory=dict)
    odd_columns: frozenset[str] = frozenset()  # recorded incompletely, which differs from never recorded
    odd_unreached: Mapping[str, tuple[int, Any, int]] = field(default_factory=dict)  # side -> step, reported, lacking
    weights_unknown: tuple[int, ...] = ()  # steps of which no record shows equal weights
    prompts_unknown: tuple[int, ...] = ()
