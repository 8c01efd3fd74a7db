"""The check of a learner's ranks: whether they do together what one process would."""

from __future__ import annotations

from harness.parity.checks.registry import Outcome, check, outcome, trains
from harness.parity.facts.divergence import Kind
from harness.parity.facts.evidence import Evidence, Side
from reports.text import counted

NAME = "ranks"


def _several(e: Evidence) -> list[Side]:
    """Return the sides whose learner has several ranks that are recorded, or should be.

    The trainer of the harness records its ranks, and what one side recorded is expected of the other.
    """
    recorded = any(side.ranks.updates for side in e.sides)
    several = []
    for side in e.sides:
        must_record = recorded or not side.recording.records.manifest.framework
        if side.ranks.updates or (side.ranks.world > 1 and must_record):
            several.append(side)
    return several


def _applies(e: Evidence) -> bool:
    return (trains(e) or (e.alone and e.train)) and bool(_several(e))


@check(NAME, required=_applies, applies=_applies, alone=True)
def ranks(e: Evidence) -> Outcome:
    """Samples, losses, gradients, weights and answers of each rank, by what the ranks recorded of themselves."""
    kinds = e.diverged(Kind.RANKS)
    if kinds:
        place = e.earliest(*kinds)
        assert place is not None
        return outcome(NAME, "confirmed", place.context, kinds=kinds)
    lacking = [f"{side.name}: {what}" for side in _several(e) if (what := side.ranks.lacking(e.steps))]
    if lacking:
        return outcome(NAME, "not tested", f"{lacking[0]} were recorded")
    return outcome(NAME, "ruled out", "; ".join(map(_in_words, _several(e))))


def _in_words(side: Side) -> str:
    updates = sum(len(next(iter(group.values())).norm) for group in side.ranks.updates.values())
    text = (
        f"{side.name}: {counted(side.ranks.world, 'rank')} made {counted(updates, 'update')} with equal weights, each "
    )
    return text + "of the sum of all gradients, on each sample once an epoch"
