"""In words, where the differences of each engine from its learner stand."""

from __future__ import annotations

from harness.parity.facts.divergence import Kind
from harness.parity.facts.evidence import Evidence


def separated(e: Evidence) -> list[str]:
    """Return for each engine that differs from its learner the clearest exact separation of what differs."""
    exact = ((side.name, e.log_probabilities.separations.get(Kind.ENGINE.of(side.name))) for side in e.sides)
    return [f"of the {name}: {separations[0].in_words()}" for name, separations in exact if separations]
