"""Where samples end, and why: lengths and finish reasons of samples with equal tokens."""

from __future__ import annotations

import numpy as np

from harness.parity.facts.align import AlignedTokens
from harness.parity.facts.divergence import Kind
from harness.parity.facts.evidence import Counts, SideCounts
from harness.parity.facts.evidence_builder import EvidenceBuilder, SideBuilder
from harness.parity.subjects.recording.observed_missing_steps import FINISH
from harness.parity.subjects.sampling.observed import reported_ends, sampling_request
from harness.parity.subjects.sampling.observed_modes import REPLAY
from harness.parity.subjects.stop_conditions.observed_endings import Ending, Reason
from harness.recordings.tables import Rows, Table
from reports.model import Place

MOST_ENDINGS = 100_000  # endings that are kept, to bound memory; counts are complete
GIVEN_UP = ("abort", "error")  # the engine aborted the sample: neither the model nor a limit ended it
UNSEEN = ("stop", "stop_regex", "stop_strings")  # native parameters that end a sample at a string, unseen in ids


def note(e: EvidenceBuilder, tokens: AlignedTokens, judged: np.ndarray, differs: np.ndarray) -> None:
    """Compare the lengths and finish reasons of one step's samples.

    A guided sample that was cut at a flip (reason "flip") is not compared beyond it. Its last token is that flip; a
    sample whose last token equals the guide's was cut by something else.
    """
    grid, lengths, lengths2 = tokens.grid, tokens.lengths_a, tokens.lengths_b
    finish, finish2 = _matched(tokens.a.finish, tokens.match.a), _matched(tokens.b.finish, tokens.match.b)
    # A guided sample that was cut at a flip is shorter for that reason alone.
    cut = (finish2 == "flip") if finish2 is not None else np.zeros(len(judged), bool)
    any_flip = grid.any(differs)
    # Whether the last token that both samples have is a flip: an engine that follows a guide stops there.
    last = np.zeros(len(judged), bool)
    ends = np.flatnonzero(grid.length)
    last[ends] = differs[grid.start[1:][ends] - 1]
    if e.guided:
        short = judged & cut & last & (lengths2 < lengths)
        e.counts += Counts(not_reached=int((lengths - lengths2)[short].sum()))
        wrong = np.flatnonzero(judged & (lengths != lengths2) & ~short)
    else:
        wrong = np.flatnonzero(judged & (lengths != lengths2) & ~any_flip)
    if len(wrong):
        _note_lengths(e, tokens, wrong, finish, finish2)
    recorded = [reasons is not None and bool((reasons[judged] != "").all()) for reasons in (finish, finish2)]
    e.note_recorded(FINISH, tokens.step, *recorded)
    if finish is None or finish2 is None:
        return
    # Where both engines aborted a sample, it is unknown where it would have ended.
    given_up = np.isin(finish, GIVEN_UP) & np.isin(finish2, GIVEN_UP) & judged
    if given_up.any():
        e.given_up[tokens.step] = int(given_up.sum())
    # Finish reasons are comparable only where tokens and lengths are equal.
    reasons_recorded = (finish != "") & (finish2 != "")
    comparable = judged & reasons_recorded & (lengths == lengths2) & ~(last if e.guided else any_flip | cut)
    e.counts += Counts(
        finish_reasons=int(np.count_nonzero(comparable)),
        reasons_not_recorded=int(np.count_nonzero(judged & ~reasons_recorded)),
        reasons_parted=int(np.count_nonzero(judged & reasons_recorded & ~comparable)),
    )
    wrong = np.flatnonzero(comparable & (finish != finish2))
    if len(wrong):
        _note_reasons(e, tokens, wrong, finish, finish2)


def _matched(finish: np.ndarray | None, rows: np.ndarray) -> np.ndarray | None:
    return None if finish is None else finish[rows]


def _note_lengths(
    e: EvidenceBuilder, tokens: AlignedTokens, wrong: np.ndarray, finish: np.ndarray | None, finish2: np.ndarray | None
) -> None:
    e.counts += Counts(length_differences=len(wrong))
    _note_endings(e, tokens, wrong, finish, finish2)
    row = int(wrong[0])
    lengths = int(tokens.lengths_a[row]), int(tokens.lengths_b[row])
    reasons = [reasons[row] if reasons is not None else "?" for reasons in (finish, finish2)]
    place = Place(
        **tokens.at(row),
        phase="rollout",
        position=min(lengths),
        field="length",
        baseline=lengths[0],
        candidate=lengths[1],
        context=f"the tokens before it are equal; finish {' against '.join(map(str, reasons))}",
    )
    e.note_divergence(Kind.LENGTH.of(), tokens.match.sample[wrong], place)


def _note_reasons(
    e: EvidenceBuilder, tokens: AlignedTokens, wrong: np.ndarray, finish: np.ndarray, finish2: np.ndarray
) -> None:
    match, lengths, output = tokens.match, tokens.lengths_a, tokens.column_a
    for at in wrong[: MOST_ENDINGS - len(e.reasons)].tolist():
        token = int(output.row(int(match.a[at]))[-1]) if lengths[at] else -1
        reason_pair = str(finish[at]), str(finish2[at])
        e.reasons.append(Reason(tokens.step, int(match.sample[at]), int(lengths[at]), token, reason_pair))
    row = int(wrong[0])
    place = Place(
        **tokens.at(row),
        phase="rollout",
        position=int(lengths[row]) - 1,
        field="finish_reason",
        baseline=str(finish[row]),
        candidate=str(finish2[row]),
    )
    e.note_divergence(Kind.FINISH.of(), match.sample[wrong], place)


def note_alone(e: EvidenceBuilder, side: SideBuilder, table: Table) -> None:
    """Find finish reasons of one run that contradict the samples' own ends: `length` at an end token, `stop` at none.

    A replay drew nothing: its reasons come from its source, or were invented where that has none. So it is skipped.
    """
    output, finish, ends = table.rows("output"), table.finish, reported_ends(side, e.mode)
    if output is None or finish is None or ends is None or e.mode == REPLAY or table.header.uncompared is not None:
        return
    native = sampling_request(side, e.mode).arguments
    has_output, last = output.lengths > 0, output.last(absent=-1)
    at_end = np.isin(last, sorted(ends))
    cut, stopped = has_output & (finish == "length"), has_output & (finish == "stop")
    # A stop string may end a sample at any token: then only stops at an end token can be checked.
    if any(native.get(name) for name in UNSEEN):
        stopped &= at_end
    side.counts += SideCounts(reasons_held=int(np.count_nonzero(cut | stopped)))
    wrong = np.flatnonzero(cut & at_end | stopped & ~at_end)
    if not len(wrong):
        return
    for row in wrong[: MOST_ENDINGS - len(side.reasons)].tolist():
        reason_pair = str(finish[row]), ""
        side.reasons.append(
            Reason(table.step, int(table.sample[row]), int(output.lengths[row]), int(last[row]), reason_pair)
        )
    row = int(wrong[0])
    which = "an end token" if at_end[row] else "no end token"
    e.note_divergence(
        Kind.REASON.of(side.name),
        table.sample[wrong],
        Place(
            **table.at(row),
            phase="rollout",
            position=int(output.lengths[row]) - 1,
            field="finish_reason",
            baseline=str(finish[row]),
            candidate="stop" if at_end[row] else None,
            context=f"its last token, {last[row]}, is {which}",
        ),
    )


def _length(rows: Rows | None, row: int) -> int:
    """Return the length of a row; 0 where the column was not recorded."""
    return 0 if rows is None else len(rows.row(row))


def _note_endings(
    e: EvidenceBuilder, tokens: AlignedTokens, wrong: np.ndarray, finish: np.ndarray | None, finish2: np.ndarray | None
) -> None:
    """Keep how each of these samples ends in either run."""
    match, output, output2 = tokens.match, tokens.column_a, tokens.column_b
    prompt = tokens.a.rows("prompt")
    prompts_seen = tokens.a.rows("prompt_seen"), tokens.b.rows("prompt_seen")
    for row in wrong[: MOST_ENDINGS - len(e.endings)]:
        ends = output.row(int(match.a[row])), output2.row(int(match.b[row]))
        shorter, longer = sorted(ends, key=len)
        sent = _length(prompt, int(match.a[row]))
        seen_lengths = _length(prompts_seen[0], int(match.a[row])), _length(prompts_seen[1], int(match.b[row]))
        e.endings.append(
            Ending(
                step=tokens.step,
                sample=int(match.sample[row]),
                sent=sent,
                seen=(seen_lengths[0] or sent, seen_lengths[1] or sent),
                lengths=(len(ends[0]), len(ends[1])),
                finish=("" if finish is None else str(finish[row]), "" if finish2 is None else str(finish2[row])),
                shorter_last=int(shorter[-1]) if len(shorter) else -1,
                longer_next=int(longer[len(shorter)]),
                longer_last=int(longer[-1]),
            )
        )
