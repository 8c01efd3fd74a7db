"""Checks that saw only a part of their evidence rule nothing out."""

from __future__ import annotations

import dataclasses

from harness.parity.checks.registry import Outcome, outcome
from harness.parity.facts.evidence import Evidence
from harness.parity.subjects.recording.observed_missing_steps import gaps, never


def require_completeness(e: Evidence, result: Outcome) -> Outcome:
    """Return the outcome of a check, as not tested where it ruled out only a part of what it compares.

    The parts are steps, samples and numbers.
    """
    if result.check.state != "ruled out":
        return result
    lacking, unknown = gaps(e, result.check.name), never(e, result.check.name)
    if not lacking:
        return dataclasses.replace(result, missing=[*result.missing, *unknown])
    missing = [f"{result.check.name}: {gap}" for gap in lacking]
    return outcome(
        result.check.name,
        "not tested",
        f"{lacking[0]}; of the others: {result.check.evidence}",
        number=result.check.number,
        findings=result.findings,
        missing=[*result.missing, *missing, *unknown],
        **result.check.details,
    )
