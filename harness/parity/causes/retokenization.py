"""Ids that were turned into text and made anew from it."""

from __future__ import annotations

from harness.parity.causes.family import CauseFamily

RETOKENIZATION = CauseFamily(
    "RETOKENIZATION",
    fix="train on the ids that the engine drew; do not decode and encode them again",
    alone="its proof makes the very ids by encoding the text of the others",
    suspicion=1,
    premise=True,
)

FAMILIES = (RETOKENIZATION,)
