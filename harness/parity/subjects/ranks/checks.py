"""The check of a learner's ranks: whether they do together what one process would, and whether the experience holds
what they answered.
"""

from __future__ import annotations

from harness.parity.checks.registry import Outcome, check, outcome, trains
from harness.parity.facts.divergence import Kind
from harness.parity.facts.evidence import Evidence, Side
from reports.text import counted

NAME = "ranks"


def _recorded(e: Evidence) -> list[Side]:
    """Return the sides whose learner recorded its answers, or should have.

    The trainer of the harness records those of several ranks, and what one side recorded is expected of the other.
    A recording of one rank made before answers were recorded has none, and is not expected to.
    """
    recorded = any(side.ranks.updates for side in e.sides)
    sides = []
    for side in e.sides:
        must_record = side.ranks.world > 1 and (recorded or not side.recording.records.manifest.framework)
        if side.ranks.updates or side.ranks.shares or must_record:
            sides.append(side)
    return sides


def _applies(e: Evidence) -> bool:
    return (trains(e) or (e.alone and e.train)) and bool(_recorded(e))


@check(NAME, required=_applies, applies=_applies, alone=True)
def ranks(e: Evidence) -> Outcome:
    """Samples, losses, gradients, weights and answers of each rank, by what the ranks recorded of themselves."""
    kinds = e.diverged(Kind.RANKS)
    if kinds:
        return outcome(NAME, "confirmed", e.first_place(*kinds).context, kinds=kinds)
    lacking = [f"{side.name}: {what}" for side in _recorded(e) if (what := side.ranks.lacking(e.steps))]
    if lacking:
        return outcome(NAME, "not tested", f"{lacking[0]} were recorded")
    return outcome(NAME, "ruled out", "; ".join(map(_in_words, _recorded(e))))


def _in_words(side: Side) -> str:
    if side.ranks.world == 1:
        return f"{side.name}: the experience holds what each role answered"
    updates = sum(len(next(iter(group.values())).norm) for group in side.ranks.updates.values())
    text = (
        f"{side.name}: {counted(side.ranks.world, 'rank')} made {counted(updates, 'update')} with equal weights, each "
    )
    return text + "of the sum of all gradients, on each sample once an epoch"
