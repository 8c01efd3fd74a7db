"""The cause RETOKENIZATION: responses that were decoded and encoded again, into other ids of the same text.

It needs recordings that hold the text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from harness.parity.causes.family import CauseFamily
from harness.parity.causes.proof import either
from harness.parity.facts.divergence import ROLLOUT, Kind, keys
from harness.parity.facts.evidence import Evidence
from harness.parity.facts.explanation import Explained, Explanation, among, keys_of, when
from harness.parity.interventions.situation import Situation
from harness.parity.interventions.trial import Trial
from harness.parity.subjects.prompts.observed import ENCODED_AGAIN
from harness.parity.subjects.prompts.observed_text import by_sample
from reports.model import Cause, Proof
from reports.text import part_of

FEWEST = 2  # flips with recorded text that must read the same
MOST = 0.9  # share of the flips with recorded text that must read the same
LOOKED_AT = 10_000  # flips that are examined at most
AHEAD = 8  # ids of a response whose text one id of another encoding may cover


def retokenized(e: Evidence, so_far: Explained) -> Iterator[Explanation]:
    """Find flips whose two tokens read the same: the ids were made anew from the text.

    The recordings hold the text of a response's first and last eight ids. Elsewhere the text is known where a tokenizer
    was asked for it (`read_aloud`). An id that the encoding made in one place it made in other places too.
    """
    flips, margins = _open(e, so_far)
    if not len(flips):
        return
    aloud = e.learned.aloud
    if aloud:  # in a baseline that was encoded again, later ids are at other positions
        first = _firsts(flips)
        flips, margins = flips[first], margins[first]
    verdicts = _read(e, flips)
    read, equal = sum(reads_same is not None for reads_same in verdicts), sum(map(bool, verdicts))
    if equal < FEWEST or equal < MOST * read:
        return
    tokens = list(map(tuple, flips[:, 3:].tolist()))
    pairs = {pair for pair, reads_same in zip(tokens, verdicts, strict=True) if reads_same}
    # The side whose tokens the learner would not have drawn holds the ids that were encoded again.
    is_retokenized = np.array([pair in pairs for pair in tokens])
    party = "baseline" if 2 * np.count_nonzero(margins[is_retokenized] < 0) > is_retokenized.sum() else "candidate"
    column = 3 if party == "baseline" else 4  # column of the ids that the encoding made
    chosen = np.isin(flips[:, column], sorted({pair[column - 3] for pair in pairs}))
    affected = np.unique(flips[chosen, :2], axis=0)
    yield Explanation(
        Cause.of(
            RETOKENIZATION.key(),
            party,
            f"the {party}'s responses were decoded and encoded again {when(e, affected[:, 0])}",
            f"{part_of(equal, read, 'token')} that differ, and whose text was recorded, are other ids of the same "
            f"text, the first are {' and '.join(map(str, sorted(pairs)[0]))}",
            {"samples": len(affected), "tokens": sorted(pairs)[:20]},
            [Proof("compare texts instead of ids", read, read - equal)],
        ),
        keys(ROLLOUT, party),
        among(affected),
    )


def _read(e: Evidence, flips: np.ndarray) -> list[bool | None]:
    """Return for each flip whether both tokens read the same; None where no text of it is known.

    A tokenizer's answer goes before recorded texts, which cover more ids than the one at the flip.
    """
    wanted = {(int(step), int(sample)) for step, sample in flips[:, :2]}
    baseline_texts, candidate_texts = (by_sample(side, wanted) for side in e.sides)
    verdicts = []
    for step, sample, position in flips[:, :3].tolist():
        key = (step, sample)
        recorded = _same_text(baseline_texts.get(key, {}), candidate_texts.get(key, {}), position)
        verdicts.append(e.learned.aloud.get((step, sample, position), recorded))
    return verdicts


def read_aloud(
    e: Evidence, so_far: Explained, texts: Callable[[list[list[int]]], list[str]]
) -> dict[tuple[int, int, int], bool]:
    """Ask a tokenizer whether the candidate's token at a flip begins the text with which the baseline goes on.

    Only the first flip of each sample that nothing explains is examined. The result becomes `Learned.aloud`.
    """
    flips, _ = _open(e, so_far)
    if not len(flips):
        return {}
    flips = flips[_firsts(flips)]
    ahead = _followed(e, flips)
    decoded = texts([*ahead.values(), *([token] for token in flips[:, 4].tolist())])
    begins = zip(ahead, decoded[: len(flips)], decoded[len(flips) :], strict=True)
    return {where: bool(token_text) and text.startswith(token_text) for where, text, token_text in begins}


def _open(e: Evidence, so_far: Explained) -> tuple[np.ndarray, np.ndarray]:
    """Return flips that no cause named so far explains, and their margins."""
    flips = e.flips.table
    open_ = np.isin(keys_of(flips[:, :2]), keys_of(so_far.left(Kind.FLIP.of())))
    return flips[open_][:LOOKED_AT], e.flips.margin[open_][:LOOKED_AT]


def _firsts(flips: np.ndarray) -> np.ndarray:
    """Return the row of the first flip of each sample."""
    order = np.lexsort((flips[:, 2], flips[:, 1], flips[:, 0]))
    _, at = np.unique(keys_of(flips[order, :2]), return_index=True)
    return order[at]


def _followed(e: Evidence, flips: np.ndarray) -> dict[tuple[int, int, int], list[int]]:
    """Return (step, sample, position) of each flip, in their order -> the baseline's next ids."""
    following_ids: dict[tuple[int, int, int], list[int]] = {tuple(place): [] for place in flips[:, :3].tolist()}
    for step in np.unique(flips[:, 0]).tolist():
        table = e.baseline.recording.table("rollout", step)
        if table is None or (output := table.rows("output")) is None:
            continue
        for _, sample, position, _, _ in flips[flips[:, 0] == step].tolist():
            ids = output.row(table.row_by_sample[sample])
            following_ids[step, sample, position] = ids[position : position + AHEAD].tolist()
    return following_ids


def _same_text(baseline_event: dict[str, Any], candidate_event: dict[str, Any], position: int) -> bool | None:
    """Whether both runs read the same around this position; None where no text of it was recorded."""
    for ids, field in (("output_first", "text_seam"), ("output_last", "text_last")):
        baseline_ids, baseline_text = _end_with_text(baseline_event, ids, field, position)
        candidate_ids, candidate_text = _end_with_text(candidate_event, ids, field, position)
        # Equal ids have equal texts: they do not say how the two tokens at the position read.
        if baseline_text and candidate_text and baseline_ids != candidate_ids:
            return baseline_text == candidate_text or _doubled(baseline_text, candidate_text)
    return None


def _end_with_text(event: dict[str, Any], ids: str, field: str, position: int) -> tuple[list[int], str]:
    """Return the recorded ids of one end of a response and their text; ([], "") where the position is not in it."""
    kept, length = event.get(ids), event.get("output_len")
    if not isinstance(kept, list) or not isinstance(length, int):
        return [], ""
    within = position < len(kept) if ids == "output_first" else position >= length - len(kept)
    return (kept, str(event.get(field) or "")) if within else ([], "")


def _doubled(first_text: str, second_text: str) -> bool:
    """Whether one text is the other with a piece of it repeated. In a guided run the guide's ids follow a longer
    token.
    """
    short, long = sorted((first_text, second_text), key=len)
    more = len(long) - len(short)
    if not more:
        return False
    for at in range(len(short) - more + 1):
        if long[: at + more] == short[: at + more] and long[at + more :] == short[at:]:
            return True
    return False


def encoded_again(s: Situation) -> Iterator[Trial]:
    """Try answers that were decoded to text and encoded again."""
    if s.answers_differ:
        yield Trial(
            RETOKENIZATION.key(),
            "the reference's answers decoded and encoded again",
            "responses were turned into text and tokenized again",
            {"output": "again"},
        )


RETOKENIZATION = CauseFamily(
    "RETOKENIZATION",
    meaning="ids were made by encoding text again: the same text in other tokens",
    fix="train on the ids that the engine drew; do not decode and encode them again",
    alone="its proof makes the very ids by encoding the text of the others",
    suspicion=1,
    premise=True,
    prompts={ENCODED_AGAIN: ()},
    proof=either("the text, encoded again, gives the very ids"),
)

FAMILIES = (RETOKENIZATION,)
