"""The cause VOCAB: an engine drew ids that the tokenizer does not have."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from harness.parity.causes.family import CauseFamily
from harness.parity.causes.proof import recorded
from harness.parity.facts.divergence import ROLLOUT, Kind, keys
from harness.parity.facts.evidence import Evidence
from harness.parity.facts.explanation import Explained, Explanation, among, restricted, when
from harness.parity.subjects.log_probabilities.observed_rereading import tokenizer
from reports.model import Cause


def vocabulary(e: Evidence, so_far: Explained) -> Iterator[Explanation]:
    """Find drawn ids that the tokenizer does not have: padding of the vocabulary.

    Where the learner draws such an id too, the engine that drew it is not the one that is wrong.
    """
    size, flips, margin = tokenizer(e).size or 0, e.flips.table, e.flips.margin
    if not size > 0 or not len(flips):
        return
    for column, side, learner_agrees in ((3, e.baseline, margin > 0), (4, e.candidate, margin < 0)):
        rows = flips[(flips[:, column] >= size) & ~learner_agrees]
        if not len(rows):
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


VOCAB = CauseFamily(
    "VOCAB",
    meaning="the engine drew ids that the tokenizer does not have",
    fix="mask the ids above the tokenizer's size before the engine samples",
    alone="the id itself is not in the tokenizer",
    proof=recorded("no sample without such an id differs"),
)

FAMILIES = (VOCAB,)
