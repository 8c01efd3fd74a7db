"""A difference that a job has from itself as well is nobody's fault: it was not tested, and not confirmed."""

from __future__ import annotations

from harness.parity.checks.registry import Outcome, outcome
from harness.parity.facts.evidence import Evidence


def excused(e: Evidence, found: Outcome) -> Outcome:
    """The outcome of a check, not tested where the second run of a side differs from its first in the same way, in
    that step or before."""
    decides = found.decides and found.check.state == "confirmed" and found.kinds
    # What is made without an engine may be excused. A noisy engine has its floor, capped, and no excuse beside it.
    if not decides or not all(key.kind.downstream for key in found.kinds):
        return found
    for side in e.sides:
        again = e.second_runs.get(side.name)
        own = again.kinds if again is not None else {}
        if all(kind in own and own[kind] <= e.first[kind].step for kind in found.kinds):
            first = min(own[kind] for kind in found.kinds)
            text = f"{found.check.evidence}; run again, the {side.name} differs from itself too, from step {first} on"
            return outcome(found.check.name, "not tested", text, number=found.check.number, **found.check.details)
    return found
