"""Rounding of half precision, which float32 does not show."""

from __future__ import annotations

from harness.parity.causes.family import CauseFamily

ARITHMETIC = CauseFamily(
    "ARITHMETIC",
    fix="compute in a wider type: the difference is rounding beyond what was believed",
    alone="it is gone in float32, and was there in half precision",
)

FAMILIES = (ARITHMETIC,)
