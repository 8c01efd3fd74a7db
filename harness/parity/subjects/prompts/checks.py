"""The suspicions about tokens: prompt ids and token boundaries.

Source of all eleven: "NCCL Hang 的猜想", the user's guesses why two engines differ (`SUSPICIONS` in `reports.model`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from harness.parity.checks.registry import Outcome, check, outcome, unless_native
from harness.parity.facts.divergence import Kind
from harness.parity.facts.evidence import Evidence, Side
from harness.parity.subjects.prompts.observed_boundaries import OUTPUT_ENDS, PROMPT_ENDS
from harness.parity.subjects.recording.checks import effect
from reports.model import SUSPICIONS, Finding
from reports.text import counted


@check(SUSPICIONS[1], 1, alone=True)
def token_ids_not_text(e: Evidence) -> Outcome:
    """Whether token ids, not text, went into the engines."""
    return _prompts(e, 1, "went in as ids and were seen as they were sent", "the engine saw")


@check(SUSPICIONS[10], 10, required=unless_native, alone=True)
def prompt_ids(e: Evidence) -> Outcome:
    """The prompt ids that an engine was sent, against those that it saw."""
    return _prompts(e, 10, "prompt_seen equals prompt", "prompt_seen is not prompt:")


def _prompts(e: Evidence, number: int, good: str, bad: str) -> Outcome:
    name = SUSPICIONS[number]
    kinds = tuple(Kind.PROMPT.of(side.name) for side in e.sides if Kind.PROMPT.of(side.name) in e.first)
    if kinds:
        counts_by_side: dict[str, Any] = {
            side.name: {kind: len(where) for kind, where in side.prompts.kinds.items()} for side in e.sides
        }
        text = "; ".join(
            f"{side}: {', '.join(f'{kind} in {count} samples' for kind, count in counts.items())}"
            for side, counts in counts_by_side.items()
            if counts
        )
        return outcome(name, "confirmed", f"{bad} {text}", number=number, kinds=kinds, **counts_by_side)
    silent = [side for side in e.sides if side.seen_samples < side.samples or not side.samples]
    if silent:
        counts = f"{silent[0].seen_samples} of {silent[0].samples}"
        text = f"the {silent[0].name}'s engine said of {counts} samples which prompt it saw"
        return outcome(name, "not tested", text, number=number)
    counts = " and ".join(f"{side.seen_samples:,} of {side.samples:,}" for side in e.sides)
    return outcome(name, "ruled out", f"{good} in {counts} samples", number=number)


@check(SUSPICIONS[2], 2)
def token_boundaries(e: Evidence) -> Outcome:
    """First and last ids, lengths and specials. Lines are compared as bytes; only those that differ are parsed."""
    name, number = SUSPICIONS[2], 2
    counts = [side.boundaries.count for side in e.sides]
    if not all(counts):
        return outcome(name, "not tested", "no token boundaries were recorded", number=number)
    for side in e.sides:
        if side.boundaries.lacking:
            text = f"token boundaries of the {side.name} lack {', '.join(side.boundaries.lacking)}"
            return outcome(name, "not tested", text, number=number)
    if e.confounded("everything", "prompts") is not None or not unless_native(e):
        return outcome(name, "not tested", "the runs do not share their samples", number=number)
    baseline_only, candidate_only = (
        _different_boundaries(e.baseline, e.candidate),
        _different_boundaries(e.candidate, e.baseline),
    )
    parted = {tuple(item) for items in (e.flips.samples, e.found(Kind.LENGTH.of())) for item in items.tolist()}
    compared, ends_skipped, wrong = counts[0] - len(baseline_only), 0, []
    for key in sorted(set(baseline_only) & set(candidate_only)):
        if key[0] in e.unjudged_steps:
            continue
        compared += 1
        ends_skipped += key in parted
        fields = PROMPT_ENDS + (() if key in parted else OUTPUT_ENDS)
        differ = [field for field in fields if baseline_only[key].get(field) != candidate_only[key].get(field)]
        if differ:
            wrong.append((key, differ[0], baseline_only[key].get(differ[0]), candidate_only[key].get(differ[0])))
    alone = len(set(baseline_only) ^ set(candidate_only))
    if wrong:
        (step, sample), field, a, b = wrong[0]
        text = (
            f"{len(wrong)} of {compared:,} samples differ, first step {step}, sample {sample}, {field}: {a} against {b}"
        )
        finding = Finding(
            "token boundaries", text, effect(e), details={"samples": [list(key) for key, *_ in wrong[:50]]}
        )
        return outcome(name, "confirmed", text, number=number, decides=False, findings=[finding])
    if alone and not e.unjudged_steps:
        return outcome(
            name, "not tested", f"the boundaries of {alone} samples were recorded in one run only", number=number
        )
    unseen = [(side.name, side.samples - n) for side, n in zip(e.sides, counts, strict=True) if n < side.samples]
    if unseen:
        text = f"the boundaries of {unseen[0][1]} samples were not recorded in the {unseen[0][0]}"
        return outcome(name, "not tested", text, number=number)
    if not ends_skipped:
        text = f"first and last ids, lengths and specials agree in {counted(compared, 'sample')}"
        return outcome(name, "ruled out", text, number=number)
    text = f"prompt ends agree in {compared:,} samples, output ends agree in {compared - ends_skipped:,} samples; "
    text += f"the output ends of {ends_skipped:,} samples were not compared, for their tokens or lengths part"
    return outcome(name, "ruled out" if compared > ends_skipped else "not tested", text, number=number)


def _different_boundaries(side: Side, against: Side) -> dict[tuple[int, int], dict[str, Any]]:
    """The boundaries of one run that the other run has not, byte for byte, parsed; by (step, sample)."""
    hashes, other_hashes = side.recording.content_hashes("boundaries"), against.recording.content_hashes("boundaries")
    alone = ~np.isin(hashes, other_hashes)
    boundaries = {}
    if alone.any():
        for (journal, line), wanted in zip(side.recording.lines("boundaries"), alone.tolist(), strict=True):
            event = side.recording.parsed(journal, line) if wanted else None
            if event is not None and isinstance(event.get("step"), int) and isinstance(event.get("sample"), int):
                boundaries[event["step"], event["sample"]] = event
    return boundaries
