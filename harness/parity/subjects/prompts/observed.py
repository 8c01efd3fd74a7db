"""Prompts that differ between what an engine was sent and what it saw, in the rollouts and in the native stage."""

from __future__ import annotations

from collections.abc import Iterator

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
    """Note one step's prompts that the engine saw changed, each with its kind of change.

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
    # By sample number, so that both runs name the same first place in whatever order their engines answered.
    wrong = wrong[np.argsort(rollout.sample[wrong])]
    right = np.setdiff1d(np.flatnonzero(reported), wrong)
    run_tokenizer = tokenizer(e)
    prompts = side.native_prompts if native else side.prompts
    prompts.extend(_changed_prompts(rollout, (sent, observed), wrong[:MOST], right, run_tokenizer))
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


def _changed_prompts(
    rollout: Table, prompts: tuple[Rows, Rows], wrong: np.ndarray, right: np.ndarray, run_tokenizer: TokenizerInfo
) -> Iterator[ChangedPrompt]:
    """Yield the kind of change of each wrong row. `prompts`: as they were sent, and as the engine saw them."""
    sent, observed = prompts
    # Prompts count as exchanged only among samples that all got a wrong one. The samples of a group share a prompt, so
    # a changed prompt that by itself came out right again is like those of its siblings.
    exchanged = {sent.row(row).tobytes() for row in wrong}
    seen_right = _seen_right(rollout, sent, right, exchanged)
    for row in wrong:
        kind = how(sent.row(row), observed.row(row), run_tokenizer)
        if kind == OTHER_IDS and observed.row(row).tobytes() in exchanged:
            kind = PERMUTED
        elif kind == OTHER_IDS and (int(rollout.rank[row]), sent.row(row).tobytes()) in seen_right:
            kind = OF_ONE_REQUEST
        yield ChangedPrompt(kind, rollout.step, int(rollout.sample[row]), len(observed.row(row)))


def how(sent: np.ndarray, observed: np.ndarray, run_tokenizer: TokenizerInfo) -> str:
    """Return in words what became of a prompt on its way."""
    extra = len(observed) - len(sent)
    if extra > 0:
        return _how_extended(sent, observed, run_tokenizer)
    return _how_cut(sent, observed, run_tokenizer) if extra < 0 else OTHER_IDS


def _how_extended(sent: np.ndarray, observed: np.ndarray, run_tokenizer: TokenizerInfo) -> str:
    extra = len(observed) - len(sent)
    if np.array_equal(observed[extra:], sent):
        begins_twice = extra == 1 and len(sent) and observed[0] == sent[0]
        is_bos = begins_twice and run_tokenizer.begin_id in (None, int(sent[0]))
        return "double BOS" if is_bos else "ids added in front"
    if np.array_equal(observed[: len(sent)], sent):
        is_template = _is_generation_prompt(observed[len(sent) :], run_tokenizer)
        return "generation prompt twice" if is_template else "ids added at the end"
    return OTHER_IDS


def _how_cut(sent: np.ndarray, observed: np.ndarray, run_tokenizer: TokenizerInfo) -> str:
    missing, bos = len(sent) - len(observed), run_tokenizer.begin_id
    if np.array_equal(sent[missing:], observed):
        return "no BOS" if missing == 1 and bos is not None and sent[0] == bos else "truncated left"
    if np.array_equal(sent[: len(observed)], observed):
        is_template = _is_generation_prompt(sent[len(observed) :], run_tokenizer)
        return "no generation prompt" if is_template else "truncated right"
    return "truncated in the middle" if len(observed) and _is_cut_in_the_middle(sent, observed) else OTHER_IDS


def _is_generation_prompt(ids: np.ndarray, run_tokenizer: TokenizerInfo) -> bool:
    template = np.array(run_tokenizer.generation_prompt, np.int64)
    return bool(len(template)) and np.array_equal(ids, template)


def _seen_right(rollout: Table, sent: Rows, rows: np.ndarray, prompts: set[bytes]) -> set[tuple[int, bytes]]:
    """Return (engine, prompt) of these prompts where an engine saw one of them as it was sent, in these rows."""
    lengths = {len(prompt) // sent.values.itemsize for prompt in prompts}
    as_long = rows[np.isin(sent.lengths[rows], sorted(lengths))]
    pairs = {(int(rollout.rank[row]), sent.row(row).tobytes()) for row in as_long.tolist()}
    return {(engine, prompt) for engine, prompt in pairs if prompt in prompts}


def _is_cut_in_the_middle(sent: np.ndarray, observed: np.ndarray) -> bool:
    """Whether `observed` is the beginning and the end of what was sent, with ids left out between them."""
    start = first_difference(sent, observed)
    end = first_difference(sent[::-1], observed[::-1])
    return start + end >= len(observed)
