"""Responses under other sample numbers: whose response a sample has, or was trained on with.

A response is recognised by its tokens together with their log-probabilities, as far as the runs show it: in a guided
run up to its first difference, where the guide takes over, else to its end.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from harness.parity.facts.align import Match, equal_rows, first_difference
from harness.recordings.tables import Rows, Table

if TYPE_CHECKING:
    from harness.parity.facts.evidence_builder import EvidenceBuilder, SideBuilder

TOLD = 20  # tokens: fewer may be another sample's by chance
MOST = 2_000  # differing samples of a step that are examined at most


class Exchange(NamedTuple):
    """Samples of one step that were trained on with each other's responses.

    `by_engine`: the responses are those of the first engine, then those of the next, assigned by place.
    """

    samples: tuple[int, ...]
    compared: int  # samples of the step
    by_engine: bool


class Source(NamedTuple):
    """A differing sample of the candidate, and the samples of the baseline's step whose response it has."""

    step: int
    sample: int
    tokens: int  # tokens of the response that were compared; the most of any owner
    by_log_probabilities: bool  # both runs recorded them, and they agree with an owner's
    owners: list[int]


def sources(e: EvidenceBuilder, b: Table, c: Table, match: Match) -> None:
    """Note, for each differing sample of a step, the samples of the baseline whose response the candidate gave it.

    The result is added to `e.sources`.
    """
    output, output2 = b.rows("output"), c.rows("output")
    if output is None or output2 is None:
        return
    differing = np.flatnonzero(~equal_rows(output, match.a, output2, match.b))
    if len(differing) < 2:
        return
    logprobs = b.per_token("logprob", output), c.per_token("logprob", output2)
    # Only baseline samples that begin with the same token can be the owner of a response.
    by_first: dict[int, list[int]] = {}
    for row, at in enumerate(match.a):
        if output.lengths[at]:
            by_first.setdefault(int(output.values[output.offsets[at]]), []).append(row)
    for row in differing[:MOST].tolist():
        drawn = output2.row(int(match.b[row]))
        # In a guided run the guide takes over after the first difference: later tokens are not the engine's own choice.
        begun = first_difference(output.row(int(match.a[row])), drawn) + 1 if e.guided else 0
        owners, logprobs_agree, length = [], False, 0
        candidates = by_first.get(int(drawn[0]), []) if len(drawn) else []
        # Several owners are kept: short responses may be equal. Whether each sample can have one of its own is decided
        # over the whole step (`causes._matched`).
        for source in candidates:
            if source == row:
                continue
            n = _begins_alike(output.row(int(match.a[source])), drawn, begun)
            if not n:
                continue
            agree = _same_logprobs(logprobs, int(match.a[source]), int(match.b[row]), n, e.tolerance.extreme)
            if agree is False:
                continue
            logprobs_agree = bool(agree)
            owners.append(int(match.sample[source]))
            length = max(length, n)
        e.sources.append(Source(b.step, int(match.sample[row]), length, logprobs_agree, owners))


def _same_logprobs(
    logprobs: tuple[Rows | None, Rows | None], baseline_row: int, candidate_row: int, tokens: int, extreme: float
) -> bool | None:
    """Whether the first `tokens` log-probabilities of two samples agree; None where one run recorded none.

    Short responses may be equal by chance, so log-probabilities must agree too.
    """
    first, second = logprobs
    if first is None or second is None:
        return None
    return bool(np.all(np.abs(first.row(baseline_row)[:tokens] - second.row(candidate_row)[:tokens]) <= extreme))


def _begins_alike(response: np.ndarray, drawn: np.ndarray, begun: int) -> int:
    """Return over how many tokens a response is the drawn one: over all of them, or over the first `begun`; else 0."""
    if np.array_equal(response, drawn):
        return len(drawn)
    return begun if begun and np.array_equal(response[:begun], drawn[:begun]) else 0


def exchanged(side: SideBuilder, source: Table, side_rollout: Table, experience: Table) -> None:
    """Note in `side.exchanged` the samples of a step that were trained on with each other's responses.

    `source`: the rollout whose responses are trained on, in a guided run the baseline's. `side_rollout`: the side's own
    rollout.
    """
    output, tokens = source.rows("output"), experience.rows("tokens")
    if output is None or tokens is None:
        return
    match = Match.of(source.sample, experience.sample)
    wrong = np.flatnonzero(~equal_rows(output, match.a, tokens, match.b))
    drawn, trained = (
        Counter(_bytes(rows, row) for row in index[wrong].tolist())
        for rows, index in ((output, match.a), (tokens, match.b))
    )
    # They change places one to one. A few tokens may be the same in two responses by chance.
    if drawn != trained or tokens.lengths[match.b[wrong]].sum() < TOLD:
        return
    # Do they stand as if the answers of several engines were joined, and numbered by their place?
    engine = dict(zip(side_rollout.sample.tolist(), side_rollout.rank.tolist(), strict=True))
    places = np.array(sorted(range(len(match.sample)), key=lambda at: engine.get(int(match.sample[at]), 0)), np.int64)
    joined = len({*engine.values()}) > 1 and bool(equal_rows(output, match.a[places], tokens, match.b).all())
    side.exchanged[side_rollout.step] = Exchange(tuple(match.sample[wrong].tolist()), len(match.sample), joined)


def _bytes(rows: Rows, row: int) -> bytes:
    return rows.row(row).astype(np.int64).tobytes()
