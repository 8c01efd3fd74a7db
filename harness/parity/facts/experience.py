"""Learner against learner: what both made of the same tokens must be the same numbers, bit for bit while nothing
confounds them.

The harness' own learners are deterministic and take the samples in one order: where every token of a step is equal, so
is every bit of what they make of it. Elsewhere another batch, or another order, may round: log-probabilities within
their tolerance, and what has no tolerance of its own by a few roundings of the learner's type at the column's scale.
"""

from __future__ import annotations

import numpy as np

from harness.parity.facts import margins
from harness.parity.facts.align import Match, equal_rows, first_difference, shared
from harness.parity.facts.evidence import Evidence
from harness.parity.facts.gaps import COLUMNS, note_experience
from harness.tables import Table
from reports.model import Place
from reports.text import counted, figure

SHOWN_IDS = 12
ROUNDINGS = 4  # of a reward, value, advantage or return, in a batch that is not the other run's
_SPACING = {"bfloat16": 2.0**-8, "float16": 2.0**-11}  # half the distance of two numbers near one
_LOGPROBS = ("actor_logprob", "reference_logprob", "kl")


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
    framework = any(side.recording.manifest.get("framework") for side in e.sides)
    exact = not framework and bool(alike.all()) and not len(match.only_a) and not len(match.only_b)
    margins.note_apart(e, b, c, ia, ib, exact=exact)
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
            exact,
        )
    reward, reward2 = b.flat("reward"), c.flat("reward")
    if reward is not None and reward2 is not None:
        e.count("rewards", np.count_nonzero(np.isfinite(reward[ia]) & np.isfinite(reward2[ib])))
        every, nowhere, one, two = np.arange(len(sample)), np.full(len(sample), -1), reward[ia], reward2[ib]
        _same_numbers(e, "reward", "reward", b, c, sample, every, nowhere, one, two, ib, exact)


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
    exact: bool,
) -> None:
    apart = (one != two) & ~(np.isnan(one) & np.isnan(two))
    if not apart.any():
        return
    e.notes.setdefault("not bit-identical", {}).setdefault(name, b.step)
    allowed = 0.0 if exact else _allowed(e, name, one)
    beyond = np.flatnonzero(apart & ~(np.abs(two - one) <= allowed))
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
                context=f"on the same tokens; {counted(len(beyond), 'value')} "
                + (f"differ by more than {figure(allowed)}" if allowed else "not bit-identical"),
            ),
        )


def _allowed(e: Evidence, name: str, values: np.ndarray) -> float:
    """What a number may differ by that another batch rounded."""
    spacing = _SPACING.get(e.tolerance.dtype)
    if spacing is None or name in _LOGPROBS:
        return e.tolerance.value
    scale = float(np.max(np.abs(values[np.isfinite(values)]), initial=1.0))
    return ROUNDINGS * spacing * scale
