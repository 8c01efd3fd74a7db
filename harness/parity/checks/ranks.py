"""The ranks of a learner: do they do together what one process would?"""

from __future__ import annotations

from harness.parity.checks.registry import Outcome, check, outcome, trains
from harness.parity.facts.divergence import Kind
from harness.parity.facts.evidence import Evidence, Side
from reports.text import counted

NAME = "ranks"


def _several(side: Side) -> bool:
    """Has its learner ranks that are recorded, or of which the harness' own trainer has to record?"""
    return bool(side.ranks.updates) or (side.ranks.world > 1 and not side.recording.manifest.get("framework"))


def _applies(e: Evidence) -> bool:
    return (trains(e) or (e.alone and e.train)) and any(map(_several, e.sides))


@check(NAME, required=_applies, applies=_applies, alone=True)
def ranks(e: Evidence) -> Outcome:
    """Samples, losses, gradients, weights and answers of each rank, by what the ranks recorded of themselves."""
    kinds = tuple(key for side in e.sides if (key := Kind.RANKS.of(side.name)) in e.first)
    if kinds:
        place = e.earliest(*kinds)
        assert place is not None
        return outcome(NAME, "confirmed", place.context, kinds=kinds)
    lacking = [f"{side.name}: {what}" for side in e.sides if _several(side) and (what := side.ranks.lacking(e.steps))]
    if lacking:
        return outcome(NAME, "not tested", f"{lacking[0]} were recorded")
    return outcome(NAME, "ruled out", "; ".join(_told(side) for side in e.sides if _several(side)))


def _told(side: Side) -> str:
    updates = sum(len(next(iter(group.values())).norm) for group in side.ranks.updates.values())
    text = (
        f"{side.name}: {counted(side.ranks.world, 'rank')} made {counted(updates, 'update')} with equal weights, each "
    )
    return text + "of the sum of all gradients, on each sample once an epoch"
