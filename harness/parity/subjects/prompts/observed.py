"""Prompts that an engine saw otherwise than it was sent, and what became of them, in the rollouts and the native
stage.
"""

from __future__ import annotations

import numpy as np

from harness.parity.facts.align import around, equal_rows, first_difference
from harness.parity.facts.divergence import Kind
from harness.parity.facts.evidence import SideCounts
from harness.parity.facts.evidence_builder import EvidenceBuilder, SideBuilder
from harness.parity.subjects.log_probabilities.observed_rereading import tokenizer
from harness.parity.subjects.prompts.observed_changes import ChangedPrompt
from harness.recordings.records.tokenizer_info import TokenizerInfo
from harness.recordings.tables import Rows, Table
from reports.model import Place

PERMUTED = "another sample's prompt"
OTHER_IDS = "other ids"
OF_ONE_REQUEST = "other ids of one request"  # the engine saw the same prompt of another sample as it was sent
ENCODED_AGAIN = "other ids of the same text"
MOST = 4096  # prompts of a step that are examined one by one at most


def note(e: EvidenceBuilder, side: SideBuilder, rollout: Table) -> None:
    """Note one step's prompts that the engine saw otherwise, each with its kind of change.

    They go to `side.prompts`, those of the native stage to `side.native_prompts`: it has its own divergence and steps.
    """
    sent, observed = rollout.rows("prompt"), rollout.rows("prompt_seen")
    if sent is None or observed is None:
        return
    native = rollout.kind != "rollout"
    all_rows = np.arange(len(rollout.sample))
    reported = observed.lengths > 0
    side.counts += SideCounts(seen_samples=0 if native else int(reported.sum()))
    wrong = np.flatnonzero(reported & ~equal_rows(sent, all_rows, observed, all_rows))
    if not len(wrong):
        return
    wrong = wrong[np.argsort(rollout.sample[wrong])]
    prompts = side.native_prompts if native else side.prompts
    run_tokenizer = tokenizer(e)
    # Prompts count as exchanged only among samples that all got a wrong one. The samples of a group share a prompt, so
    # a changed prompt that by itself came out right again is like those of its siblings.
    exchanged = {sent.row(row).tobytes() for row in wrong[:MOST]}
    right = _seen_right(rollout, sent, np.setdiff1d(np.flatnonzero(reported), wrong), exchanged)
    for row in wrong[:MOST]:
        kind = how(sent.row(row), observed.row(row), run_tokenizer)
        if kind == OTHER_IDS and observed.row(row).tobytes() in exchanged:
            kind = PERMUTED
        elif kind == OTHER_IDS and (int(rollout.rank[row]), sent.row(row).tobytes()) in right:
            kind = OF_ONE_REQUEST
        prompts.append(ChangedPrompt(kind, rollout.step, int(rollout.sample[row]), len(observed.row(row))))
    row = int(wrong[0])
    ids, seen_ids = sent.row(row), observed.row(row)
    at, became = first_difference(ids, seen_ids), how(ids, seen_ids, run_tokenizer)
    e.note_divergence(
        (Kind.NATIVE_PROMPT if native else Kind.PROMPT).of(side.name),
        rollout.sample[wrong],
        Place(
            **rollout.at(row),
            phase="native" if native else "prompt",
            position=at,
            field="prompt_seen",
            **side.paired(around(seen_ids, at), around(ids, at)),
            context=f"the {side.name}'s engine was sent {len(ids):,} ids and saw {len(seen_ids):,}: {became}",
        ),
    )


def how(sent: np.ndarray, observed: np.ndarray, run_tokenizer: TokenizerInfo) -> str:
    """Return in words what became of a prompt on its way."""
    extra = len(observed) - len(sent)
    template, bos = np.array(run_tokenizer.generation_prompt, np.int64), run_tokenizer.begin_id
    if extra > 0 and np.array_equal(observed[extra:], sent):
        doubled = extra == 1 and len(sent) and observed[0] == sent[0] and bos in (None, int(sent[0]))
        return "double BOS" if doubled else "ids added in front"
    if extra > 0 and np.array_equal(observed[: len(sent)], sent):
        doubled = len(template) and np.array_equal(observed[len(sent) :], template)
        return "generation prompt twice" if doubled else "ids added at the end"
    if extra < 0 and np.array_equal(sent[-extra:], observed):
        return "no BOS" if extra == -1 and bos is not None and sent[0] == bos else "truncated left"
    if extra < 0 and np.array_equal(sent[: len(observed)], observed):
        cut = len(template) and np.array_equal(sent[len(observed) :], template)
        return "no generation prompt" if cut else "truncated right"
    if extra < 0 and len(observed) and _is_cut_in_the_middle(sent, observed):
        return "truncated in the middle"
    return OTHER_IDS


def _seen_right(rollout: Table, sent: Rows, rows: np.ndarray, prompts: set[bytes]) -> set[tuple[int, bytes]]:
    """Return (engine, prompt) of those of these prompts that an engine saw as they were sent, in the given rows."""
    lengths = {len(prompt) // sent.values.itemsize for prompt in prompts}
    alike = rows[np.isin(sent.lengths[rows], sorted(lengths))]
    pairs = {(int(rollout.rank[row]), sent.row(row).tobytes()) for row in alike.tolist()}
    return {(engine, prompt) for engine, prompt in pairs if prompt in prompts}


def _is_cut_in_the_middle(sent: np.ndarray, observed: np.ndarray) -> bool:
    """Whether `observed` is the beginning and the end of what was sent, with ids left out between them."""
    start = first_difference(sent, observed)
    end = first_difference(sent[::-1], observed[::-1])
    return start + end >= len(observed)
