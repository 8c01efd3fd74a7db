"""Flips: tokens that differ, and the learner's margin that says how close the choice was."""

from __future__ import annotations

import numpy as np

from harness.parity.facts.align import AlignedTokens, Match
from harness.parity.facts.comparison import Comparison, RecordedSide
from harness.parity.facts.divergence import Kind
from harness.parity.facts.evidence import Counts
from harness.parity.facts.evidence_builder import EvidenceBuilder
from harness.parity.subjects.precision.observed_floor import implausible
from harness.parity.subjects.precision.observed_rounding import both
from harness.parity.subjects.sampling.observed_flip_table import FarChoices, FlipRows
from harness.recordings.tables import Rows, Table
from reports.model import Place
from reports.text import figure


def far_margin(e: Comparison[RecordedSide]) -> float:
    """Return the margin up to which a token that half precision rounds far reverses a choice.

    It is 0 for greedy choices, where nothing says how rarely a gap is small.
    """
    return e.tolerance.far_margin if e.mode == "coupled" else 0.0


class Learner:
    """Look up the margin and the runner-up of single tokens in one run's experience."""

    def __init__(self, experience: Table | None, sample: np.ndarray) -> None:
        # None where not every token has all three columns.
        self.columns = None if experience is None else both(experience, "tokens", "margin", "runner_up")
        # The filter edge of what a guided engine chose, which is recorded only in half precision with filters.
        self.drawn = None if experience is None else both(experience, "tokens", "drawn_edge")
        self.row = np.full(len(sample), -1)
        if experience is not None:
            match = Match.of(sample, experience.sample)
            self.row[match.a] = match.b

    def at(self, row: np.ndarray, position: np.ndarray, token: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return (margin, runner-up) where the learner scored this very token; NaN and -1 elsewhere."""
        margin, best = np.full(len(row), np.nan), np.full(len(row), -1)
        if self.columns is None:
            return margin, best
        tokens, margins, second = self.columns
        scored, place = self._places(tokens, row, position, token)
        margin[scored], best[scored] = margins.values[place], second.values[place]
        return margin, best

    def drawn_edge(self, row: np.ndarray, position: np.ndarray, token: np.ndarray) -> np.ndarray:
        """Return by how many nats filter edges must move to allow the engine's choice in place of this token; else
        NaN.
        """
        edge = np.full(len(row), np.nan)
        if self.drawn is not None:
            scored, place = self._places(self.drawn[0], row, position, token)
            edge[scored] = self.drawn[1].values[place]
        return edge

    def _places(
        self, tokens: Rows, row: np.ndarray, position: np.ndarray, token: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return (indices of the tokens that the learner scored, their places in the columns)."""
        experience_rows = self.row[row]
        scored = np.flatnonzero((experience_rows >= 0) & (position < tokens.lengths[experience_rows]))
        place = tokens.offsets[experience_rows[scored]] + position[scored]
        right = tokens.values[place] == token[scored]
        return scored[right], place[right]


def same_draw(e: Comparison[RecordedSide]) -> bool:
    """Whether both learners scored the same draw, so that their margins are the same numbers."""
    baseline_scenario, candidate_scenario = (side.recording.scenario for side in e.sides)
    return all(baseline_scenario.get(key) == candidate_scenario.get(key) for key in ("sampling", "seed"))


def note(
    e: EvidenceBuilder, tokens: AlignedTokens, flipped: np.ndarray, lookup: Learner, second: Learner | None = None
) -> None:
    """Note one step's flips, at the flat positions `flipped`.

    `lookup`: the baseline's learner. `second`: the candidate's, where it scored the same draw. A flip is a tie only if
    both take it for one.
    """
    match = tokens.match
    baseline_tokens, candidate_tokens = tokens.tokens_a[flipped], tokens.tokens_b[flipped]
    row, position = tokens.grid.row[flipped], tokens.grid.position[flipped]
    margin, best = lookup.at(row, position, baseline_tokens)
    # An infinite margin means that one of the two tokens lies outside of what the filters leave. Rounding may move a
    # few tokens across that edge, but not many.
    outside = np.isinf(margin)
    rounding = e.tolerance.rounding  # in half precision most tokens round by far less than the cap
    typical = rounding.mean if e.tolerance.half and rounding.measured else e.tolerance.cap
    judged = implausible(int(outside.sum()), tokens.grid.size, typical, e.tolerance.temperature)
    # In half precision rounding decides which of the two a filter leaves. In float32 no other token was left
    # (docs/reference/format.md).
    edge = outside & (best == candidate_tokens) & e.tolerance.half
    has_margin = np.isfinite(margin) | edge | (outside & judged)
    benign = has_margin & ((np.abs(margin) <= e.tolerance.margin) | edge) & (best == candidate_tokens)
    if second is not None:
        second_margin, best2 = second.at(row, position, baseline_tokens)
        near = (np.abs(second_margin) <= e.tolerance.margin) | (np.isinf(second_margin) & e.tolerance.half)
        benign &= np.isnan(second_margin) | (near & (best2 == candidate_tokens))
    far = has_margin & ~benign & (np.abs(margin) <= far_margin(e)) & (best == candidate_tokens)
    if second is not None and far_margin(e) > 0:  # rounding may move a filter's edge further than it moves most tokens
        edged = second.drawn_edge(row, position, baseline_tokens) <= e.tolerance.extreme_drawn
        far |= edged & ~benign
        has_margin |= far
    beyond = has_margin & ~benign & ~far
    rows = np.unique(row)
    e.flipped_samples.append(np.stack([np.full(len(rows), tokens.step), match.sample[rows]], axis=1))
    e.counts += Counts(
        flips=len(flipped),
        benign_flips=int(np.count_nonzero(benign)),
        flips_beyond_margin=int(np.count_nonzero(beyond)),
        flips_without_margin=int(np.count_nonzero(~has_margin)),
        flips_without_any_margin=int(np.count_nonzero(np.isnan(margin))),
        flips_for_candidate=int(np.count_nonzero(beyond & (margin < 0))),
    )
    e.series["flips"][-1] = float(len(flipped))
    e.series["flips_beyond_margin"][-1] = float(np.count_nonzero(beyond))
    for kind, chosen in ((Kind.FLIP, beyond), (Kind.UNJUDGED_FLIP, ~has_margin), ("tie", benign), ("far", far)):
        index = np.flatnonzero(chosen)
        if len(index):
            at = int(index[0])
            gap = float(margin[at])
            place = Place(
                **tokens.at(row[at]),
                phase="rollout",
                position=int(position[at]),
                field="token",
                baseline=int(baseline_tokens[at]),
                candidate=int(candidate_tokens[at]),
                margin=gap if np.isfinite(gap) else None,
                context=f"the learner's second choice is {int(best[at])}; "
                f"a gap up to {figure(e.tolerance.margin)} would be benign"
                if not np.isinf(gap)
                else "one of the two lies outside of what top-k, top-p and min-p leave",
            )
            samples = match.sample[np.unique(row[index])]
            if isinstance(kind, Kind):
                e.note_divergence(kind.of(), samples, place)
            elif kind == "tie":  # no divergence, unless there are too many (`note_improbable_flips`)
                e.ties.append((samples, place))
            else:
                far_columns = (
                    match.sample[row[far]],
                    position[far],
                    baseline_tokens[far],
                    candidate_tokens[far],
                )
                columns = (np.full(len(index), tokens.step), *far_columns)
                flips = FlipRows.of(*columns, margin=margin[far])
                e.far.append(FarChoices(Kind.FLIP.of(), samples, place, margin[far], flips))
    flips = FlipRows.of(
        np.full(np.count_nonzero(beyond), tokens.step),
        match.sample[row[beyond]],
        position[beyond],
        baseline_tokens[beyond],
        candidate_tokens[beyond],
        margin=margin[beyond],
    )
    e.flips.append(flips)
