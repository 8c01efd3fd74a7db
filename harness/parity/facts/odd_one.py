"""Who moved: of two engines and their learners, the one whose numbers no other has.

Each quantity is compared in pairs: engine with engine, learner with learner, each engine with its own learner. Where
the pairs do not tell, the party is "unknown".
"""

from __future__ import annotations

import numpy as np

from harness.parity.facts.divergence import Kind
from harness.parity.facts.evidence import Evidence
from harness.parity.facts.explanation import Where

TRAINER, UNKNOWN = "trainer", "unknown"
# Kinds that hold an engine against its learner: either of the two may have moved.
AGAINST_LEARNER = (Kind.ENGINE, Kind.CHOICE, Kind.SYNC, Kind.DRIFT, Kind.NATIVE_LEARNER)


def everywhere(items: np.ndarray) -> np.ndarray:
    return np.ones(len(items), bool)


def odd_one(e: Evidence, side: str, here: Where = everywhere) -> str:
    """Return who moved where an engine and its learner disagree: the side, for its engine, "trainer" or "unknown".

    `here`: the (step, sample) rows in question.
    """
    if e.alone:
        return UNKNOWN
    between_engines = (Kind.LOGPROB.of(), Kind.FLIP.of(), Kind.ENGINE_DRIFT.of())
    if any(here(e.found(key)).any() for key in between_engines):
        return side
    if not engines_compared(e):
        return UNKNOWN
    other_side = next(name for name in ("baseline", "candidate") if name != side)
    if here(e.found(Kind.EXPERIENCE.of())).any():
        return TRAINER  # equal engines, other learners
    if here(e.found(Kind.ENGINE.of(other_side))).any():
        # Two engines against two learners. Engines of one implementation are one opinion, and so are the learners.
        return TRAINER if _independent(e) else UNKNOWN
    return UNKNOWN


def engines_compared(e: Evidence) -> bool:
    """Whether enough tokens were compared between the engines, of the steps in which they can be compared.

    Learners that part in an update leave no later step in which the engines hold equal weights.
    """
    steps = len(e.steps) - len(e.unjudged_steps)
    tokens = min(side.counts.tokens for side in e.sides)
    return steps > 0 and 2 * e.counts.compared_tokens * len(e.steps) >= tokens * steps


def repeat_themselves(e: Evidence) -> bool:
    """Whether each engine was asked again, in other batches and by scoring, and gave the same."""
    return all(side.floor.measured and not side.floor.absent and not side.floor.exceeds(e.of_engines)
               and not side.floor.flips for side in e.sides)  # fmt: skip


def _independent(e: Evidence) -> bool:
    """Whether the engines are of two implementations."""
    names = [side.recording.records.manifest.backend for side in e.sides]
    return None not in names and len({str(name).partition("@")[0] for name in names}) == len(names)
