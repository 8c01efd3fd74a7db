"""Evidence that every step must have: which step of which run lacks it.

A comparison of one step in twenty says nothing about the others: a probe may have turned itself off, or a hook may have
moved. What either run recorded in some step, both must have recorded in every step that is compared. The harness' own
runs must have recorded all of it. What the job of a framework never records is reported as missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from harness.parity.facts.evidence import Evidence
from harness.parity.facts.evidence_builder import EvidenceBuilder
from harness.parity.subjects.recording.observed_unknowns import filtered
from harness.parity.subjects.sampling import observed_margins
from harness.recordings.tables import Rows, Table
from reports.model import SUSPICIONS
from reports.text import first_of

FINISH, REWARD, TOKENS = "finish reasons", "rewards", "experience"
MARGIN, VERSION, CACHED = "margins", "weight version of the experience", "cached prompt tokens"
BATCH, CRITIC = "digest of the batch", "digest of the critic"
# What the learner makes of each token of a rollout.
COLUMNS = ("actor_logprob", "reference_logprob", "value", "kl", "return", "advantage")
NORMS = ("grad_norm", "critic_grad_norm")
LOSSES = ("policy_loss", "value_loss", *NORMS)
# Recorded by every run of the harness that can have it.
_OWN = {FINISH, REWARD, TOKENS, MARGIN, VERSION, BATCH, CRITIC, *COLUMNS, "policy_loss", "value_loss"}
# Check -> what it compares step by step.
_COMPARED = {
    "finish-reasons": (FINISH,),
    "trained-tokens": (TOKENS,),
    "experience": (TOKENS, *COLUMNS),
    "rewards": (TOKENS, REWARD),
    "engine-against-learner": (MARGIN,),
    "weight-sync": (VERSION,),
    SUSPICIONS[8]: (CACHED,),
    "learner": (BATCH, CRITIC, *LOSSES),
}


def gaps(e: Evidence, check: str) -> list[str]:
    """Return a sentence for each kind of evidence that a check lacks in some compared step; [] where it lacks none."""
    sentences = []
    for what in _COMPARED.get(check, ()):
        recorded = e.completeness.by_step.get(what, {})
        steps = {step: pair for step, pair in sorted(recorded.items()) if step not in e.unjudged_steps}
        # What no step has is a gap of our own runs only, and of a column with gaps: a framework may never record it.
        is_required = (what in _OWN and not e.of_a_framework) or what in e.completeness.odd_columns
        lacking = [step for step, pair in steps.items() if not all(pair)]
        if lacking and (is_required or _in_any_step(steps)):
            recorded_by = zip(e.sides, steps[lacking[0]], strict=True)
            where = " and the ".join(side.name for side, is_recorded in recorded_by if not is_recorded)
            sentences.append(f"{what} of step {first_of(lacking, 1)} not recorded, or no numbers, in the {where}")
    return sentences


def _in_any_step(steps: Mapping[int, tuple[bool, ...]]) -> bool:
    """Whether either run has it in any step. `steps`: step -> whether each run has it."""
    return any(map(any, steps.values()))


def never(e: Evidence, check: str) -> list[str]:
    """Return a sentence for each kind of evidence that no step of either run has: a limit of the evidence."""
    runs = "" if e.alone else " in either run"
    compared, by_step = _COMPARED.get(check, ()), e.completeness.by_step
    absent = [what for what in compared if by_step.get(what) and not _in_any_step(by_step[what])]
    sentences = [f"{check}: no step has {what}{runs}" for what in absent if what not in (MARGIN, *LOSSES)]
    # A learner that records any of its losses need not record the others.
    recorded_losses = [name for name in LOSSES if by_step.get(name)]
    if LOSSES[0] in compared and recorded_losses and {*recorded_losses} <= {*absent}:
        sentences.append(f"{check}: no step has losses{runs}")
    return sentences


def note_experience(e: EvidenceBuilder, *tables: Table) -> None:
    """Note which columns of one step's experience each run has for every token, and whether they are finite numbers."""
    step = tables[0].step
    if e.mode in ("coupled", "greedy"):  # only of these draws can the learner repeat the margins
        whole = []
        for table, side in zip(tables, e.sides, strict=True):
            # A filter that leaves one token makes its margin infinite.
            whole.append(_is_whole(table.rows("margin"), table.rows("tokens"), bounded=not filtered(side)))
        e.note_recorded(MARGIN, step, *whole)
        observed_margins.note(e, tables)
    e.note_recorded(VERSION, step, *(table.header.weight_version is not None for table in tables))
    e.note_recorded(TOKENS, step, *(table.rows("tokens") is not None for table in tables))
    for name in COLUMNS:
        columns_of_runs = [table.rows(name) for table in tables]
        is_whole = [_is_whole(table.rows(name), table.rows("tokens")) for table in tables]
        _note_column(e, step, name, columns_of_runs, is_whole)
    rewards = [table.flat("reward") for table in tables]
    _note_column(e, step, REWARD, rewards, [r is not None and bool(np.isfinite(r).all()) for r in rewards])


def _note_column(
    e: EvidenceBuilder, step: int, name: str, columns: Sequence[Rows | np.ndarray | None], is_whole: list[bool]
) -> None:
    """Note which runs have a column whole, and whether one has it with gaps or numbers that are not finite."""
    e.note_recorded(name, step, *is_whole)
    if any(column is not None and not good for column, good in zip(columns, is_whole, strict=True)):
        e.odd_columns.add(name)


def cached(rollout: Table) -> bool:
    """Whether a step has counts of cached prompt tokens that its samples can have."""
    counts, prompt, output = rollout.flat("cached"), rollout.rows("prompt"), rollout.rows("output")
    if counts is None or prompt is None or output is None:
        return counts is not None
    # A sample that was set aside and resumed also counts its own tokens.
    return bool(((counts >= 0) & (counts <= prompt.lengths + output.lengths)).all())


def _is_whole(column: Rows | None, tokens: Rows | None, *, bounded: bool = True) -> bool:
    if column is None or tokens is None or not np.array_equal(column.lengths, tokens.lengths):
        return False
    return bool((np.isfinite(column.values) if bounded else ~np.isnan(column.values)).all())
