"""The cause SHAPE: ranks get unequal shares of a batch, where the learners differ or make other numbers of it."""

from __future__ import annotations

from collections.abc import Iterator

from harness.parity.causes.family import CauseFamily
from harness.parity.causes.proof import supported
from harness.parity.facts.divergence import Kind
from harness.parity.facts.evidence import Evidence
from harness.parity.facts.explanation import Explained, Explanation, from_step, when
from harness.parity.subjects.ranks.observed_shapes import unequal_ranks
from reports.model import Cause

MADE = (Kind.EXPERIENCE.of(), Kind.REWARD.of(), Kind.LEARNER.of())


def shapes(e: Evidence, so_far: Explained) -> Iterator[Explanation]:
    """Find unequal shares. They explain what the learners make of equal tokens from the first such step on.

    They are a record and no proof: other shares change the order of every sum of the learner, and nothing else was seen
    to differ.
    """
    if not any(len(so_far.left(kind)) for kind in MADE):
        return
    for side in {unequal.side.name for unequal in unequal_ranks(e)}:
        unequal_phases = [unequal for unequal in unequal_ranks(e) if unequal.side.name == side]
        first = min(unequal_phases, key=lambda unequal: unequal.steps[0])
        yield Explanation(
            Cause.of(
                SHAPE.key(),
                "trainer",
                f"the ranks of the {side}'s learner get unequal shares of a batch {when(e, first.steps)}",
                first.text,
                {
                    "side": side,
                    "phases": sorted(unequal.phase for unequal in unequal_phases),
                    "steps": list(first.steps),
                },
            ),
            MADE,
            from_step(first.steps[0]),
        )


SHAPE = CauseFamily(
    "SHAPE",
    meaning="the ranks of the learner get unequal shares of a batch",
    fix="check how samples are padded and batched before training",
    alone="the shapes themselves are recorded",
    suspicion=3,
    proof=supported("the shapes are a record, and no number is made again with others"),
)

FAMILIES = (SHAPE,)
