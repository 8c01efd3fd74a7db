"""Random numbers: another seed, or one that several samples share."""

from __future__ import annotations

from harness.parity.causes.family import CauseFamily

RNG = CauseFamily(
    "RNG",
    fix="give both engines the same seeds, and a seed to each request",
    alone="its proof draws every choice with another seed; without one it carries none",
    suspicion=7,
)
RNG_COLLISION = CauseFamily(
    "RNG_COLLISION",
    fix="give each sample of a prompt a seed of its own",
    alone="its proof finds what another sample of the group should have drawn",
    suspicion=7,
)

FAMILIES = (RNG, RNG_COLLISION)
