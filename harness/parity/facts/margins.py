"""Margins that are none: a learner whose margins say nothing excuses every flip, whether there are any or not.

The gap g between the two best perturbed logits of a Gumbel-max draw has P(g < x) <= x, so few are near ties; they are
real numbers, so few are the same; and while no filter takes tokens away, none is without bound. Of a greedy choice
nothing says how seldom the gap is small. But the gap is log p1 - log p2 of the learner's own probabilities, and the
other token has no more than what the chosen one leaves: g >= log(p / (1 - p)), of whatever model.
Both learners' margins of one draw at equal weights are the same numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from harness.parity.facts.align import shared
from harness.parity.facts.evidence import Evidence
from harness.parity.facts.flips import same_draw
from harness.parity.facts.floor import MINIMUM_TOKENS, implausible
from harness.parity.facts.metrics import SIZEABLE
from harness.parity.facts.rounding import both
from harness.parity.facts.tails import outliers
from harness.parity.facts.unknowns import filtered
from harness.recordings.tables import Rows, Table

MOST_COMMON = 0.1  # of the finite margins may be one and the same number: two of a real density are, once in a million
# The same of greedy ones in half precision, whose logits come in steps of 2^-4 between 8 and 16. Not measured.
MOST_COMMON_STEPS = 0.5
# Of the margins in half precision may be without bound, for the choice is within 0.02 nats of a filter's edge. Not
# measured: it takes a model half of whose mass lies that near the edge.
MOST_AT_EDGES = 0.5


@dataclass
class Margins:
    """Of one learner over the run: how many margins there are, and how many of them are what few should be."""

    every: int = 0
    finite: int = 0
    near: int = 0  # ties
    distinct: int = 0  # finite ones, those of equal tokens at equal positions once: greedy samples repeat each other
    repeated: int = 0  # of the distinct ones, beyond the first of each step's commonest value
    edges: int = 0  # without bound, although another token is left
    probable: int = 0  # greedy choices likelier than all other tokens together
    narrow: int = 0  # those whose gap is smaller than their probability allows

    def add(self, e: Evidence, table: Table, margin: Rows) -> None:
        values = margin.values
        finite = np.isfinite(values)
        known = both(table, "tokens", "margin", "runner_up")
        self.every += len(values)
        self.finite += int(np.count_nonzero(finite))
        self.near += int(np.count_nonzero(np.abs(values[finite]) <= e.tolerance.margin))
        if known is not None:
            self.edges += int(np.count_nonzero(np.isposinf(values) & (known[2].values >= 0)))
            position = np.arange(len(values)) - np.repeat(margin.offsets[:-1], margin.lengths)
            places = np.stack([position, known[0].values, values], axis=1)[finite]
            values = np.unique(places.astype(np.float64), axis=0)[:, 2]
        else:
            values = values[finite]
        if len(values):
            self.distinct += len(values)
            self.repeated += int(np.unique(values, return_counts=True)[1].max()) - 1
        numbers = both(table, "margin", "actor_logprob") if e.mode == "greedy" else None
        if numbers is not None:
            self._held_against(numbers[1].values.astype(np.float64), numbers[0].values, e.tolerance.value)

    def _held_against(self, logprob: np.ndarray, margin: np.ndarray, tolerance: float) -> None:
        """Greedy gaps against the probability of the choice, as far as `tolerance` nats of it say."""
        at = (logprob > np.log(0.5)) & (logprob < -SIZEABLE)
        others = -np.expm1(logprob[at])
        least = logprob[at] - np.log(others) - tolerance / others
        self.probable += int(np.count_nonzero(at))
        self.narrow += int(np.count_nonzero(margin[at] < least))


def note(e: Evidence, tables: tuple[Table, Table]) -> None:
    """Count one step's margins."""
    for side, table in zip(e.sides, tables, strict=True):
        rows = table.rows("margin")
        if rows is not None:
            e.notes.setdefault(f"margins:{side.name}", Margins()).add(e, table, rows)


def note_apart(e: Evidence, b: Table, c: Table, ia: np.ndarray, ib: np.ndarray, *, exact: bool) -> None:
    """Note where both learners' margins of the same tokens differ. `exact`: they were made in the same batches."""
    one, two = (both(table, "tokens", "margin", "runner_up") for table in (b, c))
    if e.mode not in ("coupled", "greedy") or one is None or two is None or not same_draw(e):
        return
    grid = shared([(one[1], ia), (two[1], ib)])
    p, q = grid.take(one[1], ia).astype(np.float64), grid.take(two[1], ib)
    gap = np.abs(np.subtract(q, p, out=np.zeros(len(p)), where=p != q))  # two without bound are equal
    apart = int(np.count_nonzero(~(gap <= e.tolerance.margin)))
    # At the edge of a filter, or in another batch, rounding decides of a few tokens which is the other one.
    spared = 0 if exact and not filtered(e.baseline) else e.tolerance.share.allowed(grid.size)
    if apart > spared:
        e.notes.setdefault("margins apart", (b.step, apart, grid.size))


def odd_margins(e: Evidence) -> list[str]:
    """Sides whose margins no draw can have, one sentence each."""
    found = []
    steps = e.mode == "greedy" and e.tolerance.half
    for side in e.sides:
        one: Margins = e.notes.get(f"margins:{side.name}", Margins())
        whose = f"margins of the {side.name}'s learner"
        most = (MOST_COMMON_STEPS if steps else MOST_COMMON) * one.distinct
        if e.mode == "coupled" and implausible(one.near, one.finite, e.tolerance.value, e.tolerance.temperature):
            found.append(f"{one.near:,} of {one.finite:,} {whose} are ties: no draw has so many")
        elif one.distinct >= MINIMUM_TOKENS and one.repeated > most:
            found.append(f"{one.repeated + 1:,} of {one.distinct:,} {whose} are one and the same number")
        if one.edges > (MOST_AT_EDGES * one.every if e.tolerance.half else 0):
            found.append(f"{one.edges:,} of {one.every:,} {whose} are without bound, although another token was left")
        if one.narrow > outliers(one.probable):
            found.append(f"{one.narrow:,} of {one.probable:,} {whose} are smaller than the choice is likely")
    if "margins apart" in e.notes:
        step, apart, compared = e.notes["margins apart"]
        found.append(f"{apart:,} of {compared:,} margins of step {step} are not the same in both learners")
    return found
