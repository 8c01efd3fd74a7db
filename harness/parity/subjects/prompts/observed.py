"""Prompts: what each engine says it saw, against what it was sent, and what became of those that differ; in the
rollouts and in the native stage."""

from __future__ import annotations

from typing import Any

import numpy as np

from harness.parity.facts.align import around, equal_rows, first_difference
from harness.parity.facts.divergence import Kind
from harness.parity.facts.evidence import Evidence, Side
from harness.parity.subjects.log_probabilities.observed_readings import tokenizer
from harness.recordings.tables import Table
from reports.model import Place

PERMUTED = "another sample's prompt"
ENCODED_AGAIN = "other ids of the same text"
MOST = 4096  # prompts of a step that are looked at one by one


def note(e: Evidence, side: Side, rollout: Table) -> None:
    """Note one step's prompts that the engine saw otherwise, each with its kind, in `side.prompts`; of the native
    stage, whose kind of divergence and step are its own, in `side.native_prompts`."""
    sent, seen = rollout.rows("prompt"), rollout.rows("prompt_seen")
    if sent is None or seen is None:
        return
    native = rollout.kind != "rollout"
    every = np.arange(len(rollout.sample))
    reported = seen.lengths > 0
    side.seen_samples += 0 if native else int(reported.sum())
    wrong = np.flatnonzero(reported & ~equal_rows(sent, every, seen, every))
    if not len(wrong):
        return
    wrong = wrong[np.argsort(rollout.sample[wrong])]
    prompts = side.native_prompts if native else side.prompts
    known = tokenizer(e)
    # Prompts are exchanged only among samples that all have another one: the samples of a group share a prompt, so one
    # that was changed and came back right is like those of its siblings.
    exchanged = {sent.row(row).tobytes() for row in wrong[:MOST]}
    for row in wrong[:MOST]:
        kind = how(sent.row(row), seen.row(row), known)
        if kind == "other ids" and seen.row(row).tobytes() in exchanged:
            kind = PERMUTED
        prompts.kinds.setdefault(kind, []).append((rollout.step, int(rollout.sample[row])))
        prompts.lengths.setdefault(kind, []).append(len(seen.row(row)))
    row = int(wrong[0])
    one, two = sent.row(row), seen.row(row)
    at = first_difference(one, two)
    e.diverges(
        (Kind.NATIVE_PROMPT if native else Kind.PROMPT).of(side.name),
        rollout.sample[wrong],
        Place(
            rollout.step,
            "native" if native else "prompt",
            int(rollout.rank[row]),
            int(rollout.sample[row]),
            at,
            "prompt_seen",
            *side.paired(around(two, at), around(one, at)),
            context=f"{side.name}: sent {len(one)} ids, the engine saw {len(two)}: {how(one, two, known)}",
        ),
    )


def how(sent: np.ndarray, seen: np.ndarray, known: dict[str, Any]) -> str:
    """What a prompt has become on its way, in words. `known`: the run's `tokenizer` event, or {}."""
    extra = len(seen) - len(sent)
    template = np.array(known.get("generation_prompt") or [], np.int64)
    bos = known.get("bos")
    if extra > 0 and np.array_equal(seen[extra:], sent):
        doubled = extra == 1 and len(sent) and seen[0] == sent[0] and bos in (None, int(sent[0]))
        return "double BOS" if doubled else "ids added in front"
    if extra > 0 and np.array_equal(seen[: len(sent)], sent):
        doubled = len(template) and np.array_equal(seen[len(sent) :], template)
        return "generation prompt twice" if doubled else "ids added at the end"
    if extra < 0 and np.array_equal(sent[-extra:], seen):
        return "no BOS" if extra == -1 and bos is not None and sent[0] == bos else "truncated left"
    if extra < 0 and np.array_equal(sent[: len(seen)], seen):
        cut = len(template) and np.array_equal(sent[len(seen) :], template)
        return "no generation prompt" if cut else "truncated right"
    if extra < 0 and len(seen) and _is_cut_in_the_middle(sent, seen):
        return "truncated in the middle"
    return "other ids"


def _is_cut_in_the_middle(sent: np.ndarray, seen: np.ndarray) -> bool:
    """Is it the beginning and the end of what was sent, with a run of ids left out between them?"""
    start = first_difference(sent, seen)
    end = first_difference(sent[::-1], seen[::-1])
    return start + end >= len(seen)
