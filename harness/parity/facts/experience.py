"""Learner against learner: what both made of the same tokens must be the same numbers, bit for bit while nothing
confounds them.
"""

from __future__ import annotations

import numpy as np

from harness.parity.facts.align import Match, equal_rows, first_difference, shared
from harness.parity.facts.evidence import Evidence
from harness.parity.facts.gaps import COLUMNS, note_experience
from harness.tables import Table
from reports.model import Place
from reports.text import figure

SHOWN_IDS = 12


def experiences(e: Evidence, b: Table, c: Table) -> None:
    """What the learners made of the same tokens: it must be the same numbers, bit for bit while nothing confounds
    them.
    """
    blocked = e.confounded("everything", "experience", "prompts", step=b.step)
    if blocked is not None or b.step in e.unjudged_steps:
        return
    note_experience(e, b, c)
    match = Match.of(b.sample, c.sample)
    tokens, tokens2 = b.rows("tokens"), c.rows("tokens")
    if tokens is None or tokens2 is None or not len(match.sample):
        return
    e.unpaired(
        match, f"step {b.step}: trained on in the baseline only", f"step {b.step}: trained on in the candidate only"
    )
    alike = equal_rows(tokens, match.a, tokens2, match.b)
    if not alike.all():
        e.notes.setdefault("trained on other tokens", []).append(b.step)
        if e.guided:
            row = int(np.flatnonzero(~alike)[0])
            one, two = tokens.row(int(match.a[row])), tokens2.row(int(match.b[row]))
            at = first_difference(one, two)
            e.diverges(
                "trained:candidate",
                match.sample[~alike],
                Place(
                    b.step,
                    "experience",
                    int(c.rank[match.b[row]]),
                    int(match.sample[row]),
                    at,
                    "token trained on",
                    one[at : at + SHOWN_IDS].tolist(),
                    two[at : at + SHOWN_IDS].tolist(),
                    context="guided runs train on the baseline's tokens",
                ),
            )
    e.count("experience samples", np.count_nonzero(alike))
    ia, ib, sample = match.a[alike], match.b[alike], match.sample[alike]
    for name in COLUMNS:
        column, column2 = b.rows(name), c.rows(name)
        if column is None or column2 is None:
            continue  # said by `gaps`
        if name in ("advantage", "return") and not alike.all():
            continue  # normalised over the batch, of which some samples differ
        grid = shared([(column, ia), (column2, ib)])
        _same_numbers(
            e,
            "experience",
            name,
            b,
            c,
            sample,
            grid.row,
            grid.position,
            grid.take(column, ia),
            grid.take(column2, ib),
            ib,
        )
    reward, reward2 = b.flat("reward"), c.flat("reward")
    if reward is not None and reward2 is not None:
        e.count("rewards", np.count_nonzero(np.isfinite(reward[ia]) & np.isfinite(reward2[ib])))
        every = np.arange(len(sample))
        _same_numbers(e, "reward", "reward", b, c, sample, every, np.full(len(sample), -1), reward[ia], reward2[ib], ib)


def _same_numbers(
    e: Evidence,
    kind: str,
    name: str,
    b: Table,
    c: Table,
    sample: np.ndarray,
    row: np.ndarray,
    position: np.ndarray,
    one: np.ndarray,
    two: np.ndarray,
    ib: np.ndarray,
) -> None:
    apart = (one != two) & ~(np.isnan(one) & np.isnan(two))
    if not apart.any():
        return
    e.notes.setdefault("not bit-identical", {}).setdefault(name, b.step)
    beyond = np.flatnonzero(apart & ~(np.abs(two - one) <= e.tolerance.value))
    if len(beyond):
        at = beyond[0]
        e.diverges(
            kind,
            sample[np.unique(row[beyond])],
            Place(
                b.step,
                "experience",
                int(c.rank[ib[row[at]]]),
                int(sample[row[at]]),
                int(position[at]),
                name,
                float(one[at]),
                float(two[at]),
                context=f"on the same tokens; {len(beyond)} values differ by more than {figure(e.tolerance.value)}",
            ),
        )
