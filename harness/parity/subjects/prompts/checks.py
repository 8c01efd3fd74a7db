"""Checks 1, 10 and 2, on tokens: prompt ids and token boundaries.

All eleven suspicions come from "NCCL Hang 的猜想", a user's guesses why two engines differ (`SUSPICIONS` in
`reports.model`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from harness.parity.checks.registry import Outcome, check, outcome, unless_native
from harness.parity.facts.divergence import Kind
from harness.parity.facts.evidence import Evidence, Side
from harness.parity.subjects.prompts.observed_boundaries import OUTPUT_ENDS, PROMPT_ENDS
from harness.parity.subjects.recording.checks import effect
from reports.model import SUSPICIONS, Finding
from reports.text import counted, part_of


@check(SUSPICIONS[1], 1, alone=True)
def token_ids_not_text(e: Evidence) -> Outcome:
    """Whether token ids, not text, went into the engines."""
    return _prompts(e, 1, "went in as ids and were seen as they were sent")


@check(SUSPICIONS[10], 10, required=unless_native, alone=True)
def prompt_ids(e: Evidence) -> Outcome:
    """The prompt ids that an engine was sent, against those that it saw."""
    return _prompts(e, 10, "prompt_seen equals prompt")


def _prompts(e: Evidence, number: int, good: str) -> Outcome:
    conclude = partial(outcome, SUSPICIONS[number], number=number)
    kinds = e.diverged(Kind.PROMPT)
    if kinds:
        counts_by_side: dict[str, Any] = {
            side.name: {kind: len(where) for kind, where in side.prompts.kinds.items()} for side in e.sides
        }
        texts = [_changes_in_words(name, counts) for name, counts in counts_by_side.items() if counts]
        return conclude("confirmed", "; ".join(texts), kinds=kinds, **counts_by_side)
    silent = [side for side in e.sides if side.counts.seen_samples < side.counts.samples or not side.counts.samples]
    if silent:
        counts = part_of(silent[0].counts.seen_samples, silent[0].counts.samples, "sample")
        text = f"the {silent[0].name}'s engine said of {counts} which prompt it saw"
        return conclude("not tested", text)
    counts = " and ".join(f"{side.counts.seen_samples:,} of {side.counts.samples:,}" for side in e.sides)
    return conclude("ruled out", f"{good} in {counts} samples")


def _changes_in_words(side: str, samples_by_kind: dict[str, int]) -> str:
    changes = ", ".join(f"{kind} in {counted(count, 'sample')}" for kind, count in samples_by_kind.items())
    return f"the {side}'s engine saw other prompt ids than it was sent: {changes}"


@check(SUSPICIONS[2], 2)
def token_boundaries(e: Evidence) -> Outcome:
    """First and last ids, lengths and specials. Lines are compared as bytes; only those that differ are parsed."""
    conclude = partial(outcome, SUSPICIONS[2], number=2)
    counts = [side.boundaries.count for side in e.sides]
    if incomparable := _incomparable_boundaries(e, counts):
        return conclude("not tested", incomparable)
    compared = _compared_boundaries(e, counts[0])
    samples, skipped = compared.samples, compared.outputs_skipped
    if compared.wrong:
        (step, sample), field, a, b = compared.wrong[0]
        text = f"{part_of(len(compared.wrong), samples, 'sample')} differ, first step {step}, sample {sample}, "
        text += f"{field}: {a} against {b}"
        details = {"samples": [list(key) for key, *_ in compared.wrong[:50]]}
        finding = Finding("token boundaries", text, effect(e), details=details)
        return conclude("confirmed", text, decides=False, findings=[finding])
    if compared.alone and not e.unjudged_steps:
        text = f"the boundaries of {compared.alone} samples were recorded in one run only"
        return conclude("not tested", text)
    for side, count in zip(e.sides, counts, strict=True):
        if count < side.counts.samples:
            text = f"the boundaries of {side.counts.samples - count} samples were not recorded in the {side.name}"
            return conclude("not tested", text)
    if not skipped:
        text = f"first and last ids, lengths and specials agree in {counted(samples, 'sample')}"
        return conclude("ruled out", text)
    text = f"prompt ends agree in {samples:,} samples, output ends agree in {samples - skipped:,} samples; "
    text += f"the output ends of {skipped:,} samples were not compared, for their tokens or lengths part"
    return conclude("ruled out" if samples > skipped else "not tested", text)


def _incomparable_boundaries(e: Evidence, counts: list[int]) -> str:
    """Return why the boundaries of both runs, `counts` lines of each, cannot be compared; "" where they can."""
    if not all(counts):
        return "no token boundaries were recorded"
    for side in e.sides:
        if side.boundaries.lacking:
            return f"token boundaries of the {side.name} lack {', '.join(side.boundaries.lacking)}"
    if e.confounded("everything", "prompts") is not None or not unless_native(e):
        return "the runs do not share their samples"
    return ""


@dataclass(frozen=True)
class _Boundaries:
    """The comparison of both runs' token boundaries.

    `samples`: how many were compared. `outputs_skipped`: those of them whose tokens or lengths differ, so that the ends
    of their outputs say nothing. `wrong`: (step, sample), the first field that differs, and its values. `alone`:
    samples that only one run recorded.
    """

    samples: int
    outputs_skipped: int
    wrong: list[tuple[tuple[int, int], str, Any, Any]]
    alone: int


def _compared_boundaries(e: Evidence, recorded: int) -> _Boundaries:
    """Compare the boundary lines that differ as bytes; all others are equal. `recorded`: lines of the baseline."""
    baseline_only = _different_boundaries(e.baseline, e.candidate)
    candidate_only = _different_boundaries(e.candidate, e.baseline)
    parted = {tuple(item) for items in (e.flips.samples, e.found(Kind.LENGTH.of())) for item in items.tolist()}
    differing = [key for key in sorted(set(baseline_only) & set(candidate_only)) if key[0] not in e.unjudged_steps]
    wrong = []
    for key in differing:
        fields = PROMPT_ENDS + (() if key in parted else OUTPUT_ENDS)
        baseline, candidate = baseline_only[key], candidate_only[key]
        field = next((field for field in fields if baseline.get(field) != candidate.get(field)), None)
        if field is not None:
            wrong.append((key, field, baseline.get(field), candidate.get(field)))
    return _Boundaries(
        samples=recorded - len(baseline_only) + len(differing),
        outputs_skipped=sum(key in parted for key in differing),
        wrong=wrong,
        alone=len(set(baseline_only) ^ set(candidate_only)),
    )


def _different_boundaries(side: Side, against: Side) -> dict[tuple[int, int], dict[str, Any]]:
    """Return the parsed boundaries of one run that the other has not byte for byte, by (step, sample)."""
    hashes, other_hashes = side.recording.content_hashes("boundaries"), against.recording.content_hashes("boundaries")
    alone = ~np.isin(hashes, other_hashes)
    if not alone.any():
        return {}
    boundaries = {}
    for (journal, line), is_alone in zip(side.recording.lines("boundaries"), alone.tolist(), strict=True):
        if not is_alone:
            continue
        event = side.recording.parsed(journal, line) or {}
        step, sample = event.get("step"), event.get("sample")
        if isinstance(step, int) and isinstance(sample, int):
            boundaries[step, sample] = event
    return boundaries
