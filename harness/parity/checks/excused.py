"""Excuses: a difference that a job also has from itself counts as not tested instead of confirmed."""

from __future__ import annotations

from harness.parity.checks.registry import Outcome, outcome
from harness.parity.facts.evidence import Evidence


def excused(e: Evidence, result: Outcome) -> Outcome:
    """Return the outcome of a check, as not tested where a side's second run differs from its first in the same way.

    That difference must be in the same step or before.
    """
    if not result.decides or result.check.state != "confirmed" or not result.kinds:
        return result
    # Only what is made without an engine can be excused. A noisy engine has its capped floor, and no further excuse.
    if not all(key.kind.downstream for key in result.kinds):
        return result
    for side in e.sides:
        again = e.second_runs.get(side.name)
        if again is None:
            continue
        second_kinds = again.kinds
        if all(kind in second_kinds and second_kinds[kind] <= e.first[kind].step for kind in result.kinds):
            first = min(second_kinds[kind] for kind in result.kinds)
            text = f"{result.check.evidence}; run again, the {side.name} differs from itself too, from step {first} on"
            return outcome(result.check.name, "not tested", text, number=result.check.number, **result.check.details)
    return result
