"""A difference that a job has from itself as well is nobody's fault: it was not tested, and not confirmed."""

from __future__ import annotations

from harness.parity.checks.registry import Outcome, outcome
from harness.parity.facts.evidence import Evidence


def excused(e: Evidence, result: Outcome) -> Outcome:
    """The outcome of a check, not tested where the second run of a side differs from its first in the same way, in
    that step or before."""
    decides = result.decides and result.check.state == "confirmed" and result.kinds
    # What is made without an engine may be excused. A noisy engine has its floor, capped, and no excuse beside it.
    if not decides or not all(key.kind.downstream for key in result.kinds):
        return result
    for side in e.sides:
        again = e.second_runs.get(side.name)
        second_kinds = again.kinds if again is not None else {}
        if all(kind in second_kinds and second_kinds[kind] <= e.first[kind].step for kind in result.kinds):
            first = min(second_kinds[kind] for kind in result.kinds)
            text = f"{result.check.evidence}; run again, the {side.name} differs from itself too, from step {first} on"
            return outcome(result.check.name, "not tested", text, number=result.check.number, **result.check.details)
    return result
