"""Weights that changed while a sample was drawn."""

from __future__ import annotations

from harness.parity.causes.family import CauseFamily, Rival, Seen

MIXED_VERSION = CauseFamily(
    "MIXED_VERSION",
    fix="pause generation during a weight sync, and sync every replica before the next request",
    rivals=(Rival("a fault of the position", (Seen.CUTS_VARY, Seen.ONE_VERSION_AGREES)),),
)

FAMILIES = (MIXED_VERSION,)
