"""Margins that are none: a learner whose margins say nothing excuses every flip, whether there are any or not.

The gap g between the two best perturbed logits of a Gumbel-max draw has P(g < x) <= x, so few are near ties; they are
real numbers, so few are the same; and while no filter takes tokens away, none is without bound.
"""

from __future__ import annotations

import numpy as np

from harness.parity.facts.evidence import Evidence
from harness.parity.facts.floor import MINIMUM_TOKENS, implausible
from harness.tables import Table

MOST_COMMON = 0.1  # of the finite margins may be one and the same number


def note(e: Evidence, tables: tuple[Table, Table]) -> None:
    """Count one step's margins: all finite ones, near ties, and those of the commonest value."""
    if e.mode != "coupled":
        return
    for side, table in zip(e.sides, tables, strict=True):
        rows = table.rows("margin")
        values = rows.values[np.isfinite(rows.values)] if rows is not None else np.zeros(0)
        if not len(values):
            continue
        commonest = int(np.unique(values, return_counts=True)[1].max())
        near = int(np.count_nonzero(np.abs(values) <= e.tolerance.margin))
        known = e.notes.setdefault(f"margins:{side.name}", np.zeros(3, np.int64))
        known += (len(values), near, commonest)


def odd_margins(e: Evidence) -> list[str]:
    """Sides whose margins no draw can have, one sentence each."""
    found = []
    for side in e.sides:
        total, near, commonest = (int(one) for one in e.notes.get(f"margins:{side.name}", (0, 0, 0)))
        if implausible(near, total, e.tolerance.value, e.tolerance.temperature):
            found.append(f"{near:,} of {total:,} margins of the {side.name}'s learner are ties: no draw has so many")
        elif total >= MINIMUM_TOKENS and commonest > MOST_COMMON * total:
            found.append(f"{commonest:,} of {total:,} margins of the {side.name}'s learner are one and the same number")
    return found
