"""The cause VOCAB: an engine drew ids that the tokenizer does not have."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from harness.parity.causes.family import CauseFamily
from harness.parity.causes.proof import recorded
from harness.parity.facts.divergence import ROLLOUT, Kind, keys
from harness.parity.facts.evidence import Evidence
from harness.parity.facts.explanation import Explained, Explanation, among, keys_of, restricted, when
from harness.parity.facts.probabilities import binomial_from
from harness.parity.subjects.log_probabilities.observed_rereading import tokenizer
from reports.model import Cause

CHANCE = 0.01  # below this probability a larger number of unknown ids is no chance


def vocabulary(e: Evidence, so_far: Explained) -> Iterator[Explanation]:
    """Find drawn ids that the tokenizer does not have: padding of the vocabulary.

    A model with spare rows draws such ids by itself now and then. So an engine is at fault only for ids that the
    learner does not draw and that no other cause explains, and only if it draws more of them than the other engine.
    """
    size, flips, margin = tokenizer(e).size or 0, e.flips.table, e.flips.margin
    if not size > 0 or not len(flips):
        return
    # At a flip a positive margin is for the baseline's token, a negative one for the candidate's. Where it is for the
    # unknown id, the learner itself draws that id.
    is_open = np.isin(keys_of(flips[:, :2]), keys_of(so_far.left(Kind.FLIP.of())))
    for column, side, other_side, learner_agrees in (
        (3, e.baseline, e.candidate, margin > 0),
        (4, e.candidate, e.baseline, margin < 0),
    ):
        rows = flips[(flips[:, column] >= size) & ~learner_agrees & is_open]
        if not len(rows) or _as_many(side.counts.unknown_ids, other_side.counts.unknown_ids):
            continue
        affected = np.unique(rows[:, :2], axis=0)
        proofs = restricted(e, (Kind.FLIP.of(),), affected, "leave out the samples with ids beyond the vocabulary")
        yield Explanation(
            Cause.of(
                VOCAB.key(),
                side.name,
                f"the engine draws ids that the tokenizer does not know {when(e, affected[:, 0])}",
                f"{len(rows):,} tokens in {len(affected):,} samples, the first is {int(rows[0, column])}; "
                f"the tokenizer has {int(size)} ids",
                {"ids": np.unique(rows[:, column]).tolist()[:20], "size": int(size)},
                proofs,
            ),
            keys(ROLLOUT, side.name),
            among(affected),
        )


def _as_many(unknown_ids: int, of_other: int) -> bool:
    """Whether two engines that draw unknown ids equally often may have drawn so many and so few (binomial, 1 %)."""
    return of_other > 0 and binomial_from(unknown_ids, unknown_ids + of_other, 0.5) >= CHANCE


VOCAB = CauseFamily(
    "VOCAB",
    meaning="the engine drew ids that the tokenizer does not have",
    fix="mask the ids above the tokenizer's size before the engine samples",
    alone="the id itself is not in the tokenizer",
    proof=recorded("no sample without such an id differs"),
)

FAMILIES = (VOCAB,)
