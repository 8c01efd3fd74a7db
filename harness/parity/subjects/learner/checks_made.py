"""The checks of what a learner makes: returns against its own rewards, losses against its own experience."""

from __future__ import annotations

from harness.parity.checks.registry import Outcome, check, outcome
from harness.parity.facts.divergence import Kind
from harness.parity.facts.evidence import Evidence
from reports.text import counted

RETURNS, LOSSES = "returns", "applied-losses"


def _applies(e: Evidence) -> bool:
    return e.train and not e.of_a_framework


@check(RETURNS, applies=_applies, alone=True)
def returns(e: Evidence) -> Outcome:
    """Each learner's returns, made again of its own rewards, values and KL penalty."""
    kinds = e.diverged(Kind.RETURNS)
    if kinds:
        return outcome(RETURNS, "confirmed", e.first_place(*kinds).context, kinds=kinds)
    silent = [side.name for side in e.sides if not side.returns.compared]
    if silent:
        text = f"the {silent[0]} does not record rewards, values, KL penalty and returns that its settings tie together"
        return outcome(RETURNS, "not tested", text)
    compared = [f"{side.name}: {counted(side.returns.compared, 'sample')}" for side in e.sides]
    return outcome(RETURNS, "ruled out", f"the returns follow from the rewards; {', '.join(compared)}")


def _losses_tell(e: Evidence) -> bool:
    """Whether a loss was recorded that another divisor would change: of a small run all divisors may give one loss."""
    return _applies(e) and any(side.applied_losses.compared or side.applied_losses.fixed_ratio for side in e.sides)


@check(LOSSES, applies=_losses_tell, alone=True)
def applied_losses(e: Evidence) -> Outcome:
    """The loss of each step's first update, made again of the learner's own advantages, values and returns; in later
    updates the ratio of probabilities.
    """
    kinds = e.diverged(Kind.APPLIED_LOSS)
    if kinds:
        return outcome(LOSSES, "confirmed", e.first_place(*kinds).context, kinds=kinds)
    silent = [side.name for side in e.sides if not side.applied_losses.compared]
    if silent:
        text = f"no loss of a first update of the {silent[0]} was recorded that another divisor would change"
        return outcome(LOSSES, "not tested", text)
    compared = [f"{side.name}: {counted(side.applied_losses.compared, 'first update')}" for side in e.sides]
    return outcome(LOSSES, "ruled out", f"the losses follow from the experience; {', '.join(compared)}")
