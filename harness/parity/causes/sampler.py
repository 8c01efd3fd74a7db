"""A sampler that draws in another way than its parameters say."""

from __future__ import annotations

from harness.parity.causes.family import CauseFamily

SAMPLER = CauseFamily(
    "SAMPLER",
    meaning="the engine's own sampler draws otherwise than its parameters say",
    fix="turn off what replaces the engine's own sampler, or use another version of the engine",
    alone="its rule names it only once a parameter, a filter and other random numbers are excluded",
    suspicion=7,
    drawn=True,
)
JOINT = SAMPLER.key("joint top-k/top-p")

FAMILIES = (SAMPLER,)
