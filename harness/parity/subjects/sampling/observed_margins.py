"""Implausible margins: a learner whose margins mean nothing would excuse every flip, so they are checked without any.

- Few are near ties: the gap g between the two best perturbed logits of a Gumbel-max draw has P(g < x) <= x.
- Few are equal, because they are real numbers.
- None is infinite while no filter removes tokens.
- Greedy gaps may be small, but not below what the probability allows. The gap is log p1 - log p2 of the learner's own
  probabilities, and the other token has at most what the chosen one leaves, so g >= log(p / (1 - p)) for any model.
- Both learners' margins of one draw at equal weights are the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from harness.parity.facts.align import shared
from harness.parity.facts.evidence import Evidence, Side
from harness.parity.facts.evidence_builder import EvidenceBuilder
from harness.parity.subjects.log_probabilities.observed_outliers import outliers
from harness.parity.subjects.precision.observed_floor import MINIMUM_TOKENS, implausible
from harness.parity.subjects.precision.observed_rounding import both
from harness.parity.subjects.recording.observed_unknowns import filtered
from harness.parity.subjects.sampling.observed_flips import same_draw
from harness.parity.subjects.sampling.observed_margin_counts import Margins
from harness.recordings.tables import Table
from reports.text import part_of

MOST_COMMON = 0.1  # share of the finite margins that may be one number: of a real density, one pair in a million is
# The same for greedy margins in half precision, whose logits come in steps of 2^-4 between 8 and 16. Not measured.
MOST_COMMON_STEPS = 0.5
# Share of the margins that may name one other token, unless as many choices are one token too. Not measured: in a
# choice between two tokens each is the other one when the first is chosen.
MOST_OTHER = 0.9
# Share of the margins in half precision that may be infinite, where the choice is within 0.02 nats of a filter's edge.
# Not measured: it takes a model with half of its mass that near the edge.
MOST_AT_EDGES = 0.5


def note(e: EvidenceBuilder, tables: tuple[Table, ...]) -> None:
    """Count the margins of one step."""
    for side, table in zip(e.sides, tables, strict=True):
        rows = table.rows("margin")
        if rows is not None:
            side.margins += Margins.of(table, rows, e.tolerance, e.mode)


def note_apart(e: EvidenceBuilder, b: Table, c: Table, ia: np.ndarray, ib: np.ndarray, *, exact: bool) -> None:
    """Note where both learners' margins of the same tokens differ. `exact`: they were made in the same batches."""
    baseline_columns, candidate_columns = (both(table, "tokens", "margin", "runner_up") for table in (b, c))
    if e.mode not in ("coupled", "greedy") or baseline_columns is None or candidate_columns is None or not same_draw(e):
        return
    grid = shared([(baseline_columns[1], ia), (candidate_columns[1], ib)])
    p, q = grid.take(baseline_columns[1], ia).astype(np.float64), grid.take(candidate_columns[1], ib)
    gap = np.abs(np.subtract(q, p, out=np.zeros(len(p)), where=p != q))  # two infinite margins are equal
    apart = int(np.count_nonzero(~(gap <= e.tolerance.margin)))
    # At a filter's edge, or in another batch, rounding changes the other token of a few positions.
    spared = 0 if exact and not filtered(e.baseline) else e.tolerance.share.allowed(grid.size)
    if apart > spared:
        e.margins_apart = e.margins_apart or (b.step, apart, grid.size)


def odd_margins(e: Evidence) -> list[str]:
    """Return a sentence for each kind of margins that no draw can have."""
    sentences: list[str] = []
    for side in e.sides:
        sentences += _odd_values(e, side)
        sentences += _odd_seconds(side)
    if e.flips.margins_apart is not None:
        step, apart, compared = e.flips.margins_apart
        sentences.append(f"{part_of(apart, compared, 'margin')} of step {step} are not the same in both learners")
    return sentences


def _odd_values(e: Evidence, side: Side) -> Iterator[str]:
    """Yield what no draw's margins can be: ties all over, one number again and again, or without bound."""
    counts, whose = side.margins, f"margins of the {side.name}'s learner"
    # Greedy margins in half precision are differences of logits, which have few values there.
    steps = e.mode == "greedy" and e.tolerance.half
    most_common = (MOST_COMMON_STEPS if steps else MOST_COMMON) * counts.distinct
    if e.mode == "coupled" and implausible(counts.near, counts.finite, e.tolerance.value, e.tolerance.temperature):
        yield f"{counts.near:,} of {counts.finite:,} {whose} are ties: no draw has so many"
    elif counts.distinct >= MINIMUM_TOKENS and counts.repeated > most_common:
        yield f"{counts.repeated + 1:,} of {counts.distinct:,} {whose} are one and the same number"
    # In half precision rounding moves a few tokens across the edge of a filter.
    most_at_edges = MOST_AT_EDGES * counts.every if e.tolerance.half else 0
    if counts.edges > most_at_edges:
        yield f"{counts.edges:,} of {counts.every:,} {whose} are without bound, although another token was left"


def _odd_seconds(side: Side) -> Iterator[str]:
    """Yield what no second choices can be: the choice itself, one token for all, or nearer than the choice allows."""
    counts, whose = side.margins, f"margins of the {side.name}'s learner"
    if counts.itself:
        yield f"{counts.itself:,} of {counts.others:,} {whose} are to the very token that was chosen"
    elif counts.others >= MINIMUM_TOKENS and counts.other > MOST_OTHER * counts.others > counts.chosen:
        yield f"{counts.other:,} of {counts.others:,} {whose} are to one and the same token"
    if counts.narrow > outliers(counts.probable):
        yield f"{counts.narrow:,} of {counts.probable:,} {whose} are smaller than the choice is likely"
