"""A check that saw a part of what belongs to it rules nothing out."""

from __future__ import annotations

import dataclasses

from harness.parity.checks.registry import Outcome, outcome
from harness.parity.facts.evidence import Evidence
from harness.parity.subjects.recording.observed_missing_steps import gaps, never


def require_completeness(e: Evidence, found: Outcome) -> Outcome:
    """The outcome of a check, not tested where it is ruled out by a part of the steps, of the samples or of the numbers
    that it compares."""
    if found.check.state != "ruled out":
        return found
    lacking, unknown = gaps(e, found.check.name), never(e, found.check.name)
    if not lacking:
        return dataclasses.replace(found, missing=[*found.missing, *unknown])
    missing = [f"{found.check.name}: {one}" for one in lacking]
    return outcome(
        found.check.name,
        "not tested",
        f"{lacking[0]}; of the others: {found.check.evidence}",
        number=found.check.number,
        findings=found.findings,
        missing=[*found.missing, *missing, *unknown],
        **found.check.details,
    )
