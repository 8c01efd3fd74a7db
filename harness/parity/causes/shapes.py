"""Ranks that were given unequal shares of a batch."""

from __future__ import annotations

from harness.parity.causes.family import CauseFamily

SHAPE = CauseFamily(
    "SHAPE",
    fix="check how samples are padded and batched before training",
    alone="the shapes themselves are recorded",
    suspicion=3,
)

FAMILIES = (SHAPE,)
