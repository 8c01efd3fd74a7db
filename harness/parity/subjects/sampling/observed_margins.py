"""Margins that are none: a learner whose margins say nothing excuses every flip, whether there are any or not.

The gap g between the two best perturbed logits of a Gumbel-max draw has P(g < x) <= x, so few are near ties; they are
real numbers, so few are the same; and while no filter takes tokens away, none is without bound. Of a greedy choice
nothing says how seldom the gap is small. But the gap is log p1 - log p2 of the learner's own probabilities, and the
other token has no more than what the chosen one leaves: g >= log(p / (1 - p)), of whatever model.
Both learners' margins of one draw at equal weights are the same numbers.
"""

from __future__ import annotations

import numpy as np

from harness.parity.facts.align import shared
from harness.parity.facts.evidence import Evidence
from harness.parity.subjects.log_probabilities.observed_outliers import outliers
from harness.parity.subjects.precision.observed_floor import MINIMUM_TOKENS, implausible
from harness.parity.subjects.precision.observed_rounding import both
from harness.parity.subjects.recording.observed_unknowns import filtered
from harness.parity.subjects.sampling.observed_flips import same_draw
from harness.recordings.tables import Table

MOST_COMMON = 0.1  # of the finite margins may be one and the same number: two of a real density are, once in a million
# The same of greedy ones in half precision, whose logits come in steps of 2^-4 between 8 and 16. Not measured.
MOST_COMMON_STEPS = 0.5
# Of the margins may be to one and the same other token, unless so many choices are one token as well. Not measured: a
# choice between two tokens has each of them as the other one where it chose the first.
MOST_OTHER = 0.9
# Of the margins in half precision may be without bound, for the choice is within 0.02 nats of a filter's edge. Not
# measured: it takes a model half of whose mass lies that near the edge.
MOST_AT_EDGES = 0.5


def note(e: Evidence, tables: tuple[Table, ...]) -> None:
    """Count one step's margins."""
    for side, table in zip(e.sides, tables, strict=True):
        rows = table.rows("margin")
        if rows is not None:
            side.margins.add(table, rows, e.tolerance, e.mode)


def note_apart(e: Evidence, b: Table, c: Table, ia: np.ndarray, ib: np.ndarray, *, exact: bool) -> None:
    """Note where both learners' margins of the same tokens differ. `exact`: they were made in the same batches."""
    baseline_columns, candidate_columns = (both(table, "tokens", "margin", "runner_up") for table in (b, c))
    if e.mode not in ("coupled", "greedy") or baseline_columns is None or candidate_columns is None or not same_draw(e):
        return
    grid = shared([(baseline_columns[1], ia), (candidate_columns[1], ib)])
    p, q = grid.take(baseline_columns[1], ia).astype(np.float64), grid.take(candidate_columns[1], ib)
    gap = np.abs(np.subtract(q, p, out=np.zeros(len(p)), where=p != q))  # two without bound are equal
    apart = int(np.count_nonzero(~(gap <= e.tolerance.margin)))
    # At the edge of a filter, or in another batch, rounding decides of a few tokens which is the other one.
    spared = 0 if exact and not filtered(e.baseline) else e.tolerance.share.allowed(grid.size)
    if apart > spared:
        e.margins_apart = e.margins_apart or (b.step, apart, grid.size)


def odd_margins(e: Evidence) -> list[str]:
    """Sides whose margins no draw can have, one sentence each."""
    sentences = []
    steps = e.mode == "greedy" and e.tolerance.half
    for side in e.sides:
        counts = side.margins
        whose = f"margins of the {side.name}'s learner"
        most = (MOST_COMMON_STEPS if steps else MOST_COMMON) * counts.distinct
        if e.mode == "coupled" and implausible(counts.near, counts.finite, e.tolerance.value, e.tolerance.temperature):
            sentences.append(f"{counts.near:,} of {counts.finite:,} {whose} are ties: no draw has so many")
        elif counts.distinct >= MINIMUM_TOKENS and counts.repeated > most:
            sentences.append(f"{counts.repeated + 1:,} of {counts.distinct:,} {whose} are one and the same number")
        if counts.edges > (MOST_AT_EDGES * counts.every if e.tolerance.half else 0):
            sentences.append(
                f"{counts.edges:,} of {counts.every:,} {whose} are without bound, although another token was left"
            )
        if counts.itself:
            sentences.append(f"{counts.itself:,} of {counts.others:,} {whose} are to the very token that was chosen")
        elif counts.others >= MINIMUM_TOKENS and counts.other > MOST_OTHER * counts.others > counts.chosen:
            sentences.append(f"{counts.other:,} of {counts.others:,} {whose} are to one and the same token")
        if counts.narrow > outliers(counts.probable):
            sentences.append(f"{counts.narrow:,} of {counts.probable:,} {whose} are smaller than the choice is likely")
    if e.margins_apart is not None:
        step, apart, compared = e.margins_apart
        sentences.append(f"{apart:,} of {compared:,} margins of step {step} are not the same in both learners")
    return sentences
