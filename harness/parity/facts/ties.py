"""Flips that no margin judges: too many of them are no ties, whatever each of them may be."""

from __future__ import annotations

from harness.parity.facts.evidence import Evidence
from harness.parity.facts.floor import implausible

UNJUDGED, FLIP = "unjudged flip", "flip"


def too_many(e: Evidence) -> None:
    """Note unjudged flips of runs that draw the same samples as flips, where engines within the tolerance of each other
    could not have made so many of so many tokens."""
    flips, compared = e.counts.get("flips without any margin", 0), e.counts.get("compared_tokens", 0)
    if e.mode not in ("coupled", "greedy"):
        return
    if implausible(flips, compared, e.tolerance.value, e.tolerance.temperature):
        e.notes["too many flips"] = flips
        found = e.found(UNJUDGED)
        for step, (_, place) in e.places[UNJUDGED].items():
            e.diverges(FLIP, found[found[:, 0] == step, 1], place)
