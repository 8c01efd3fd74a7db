"""The check of an engine against itself names the cause, where a named cause makes the engine differ from itself."""

from __future__ import annotations

from dataclasses import replace

from harness.parity.checks.registry import Outcome, Registered
from harness.parity.facts.divergence import Kind
from harness.parity.facts.explanation import Explained
from reports.model import Cause


def with_origins(
    outcomes: list[tuple[Registered, Outcome]], explained: Explained, causes: list[Cause]
) -> list[tuple[Registered, Outcome]]:
    """Return the outcomes. An engine that differs from itself for a named cause, and not by its noise, says which."""
    return [(check, _with_origin(outcome, explained, causes)) for check, outcome in outcomes]


def _with_origin(outcome: Outcome, explained: Explained, causes: list[Cause]) -> Outcome:
    e, check = explained.evidence, outcome.check
    floors = [key for key in outcome.kinds if key.kind is Kind.FLOOR]
    if check.state != "confirmed" or not floors:
        return outcome
    origins = []
    for explanation in explained.explanations:
        if explanation.cause.key.family == check.name:
            continue
        if any(explanation.covers(key, e.found(key)).all() for key in floors):
            origins.append(explanation.cause.key)
    origin = next((cause for cause in causes if cause.key in origins), None)
    if origin is None:
        return outcome
    text = f"it follows from {origin.name}{', which is proven' if origin.proven else ''}: {check.evidence}"
    return replace(outcome, check=replace(check, evidence=text, details=check.details | {"follows from": origin.name}))
