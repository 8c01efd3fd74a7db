"""Flips: tokens that differ, and the learner's margin that says how close the choice was."""

from __future__ import annotations

from dataclasses import dataclass

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
    flips = _StepFlips.of(tokens, flipped, lookup)
    has_margin, benign, far = _classified(e, flips, second)
    beyond = has_margin & ~benign & ~far
    rows = np.unique(flips.row)
    e.flipped_samples.append(np.stack([np.full(len(rows), tokens.step), tokens.match.sample[rows]], axis=1))
    e.counts += Counts(
        flips=len(flipped),
        benign_flips=int(np.count_nonzero(benign)),
        flips_beyond_margin=int(np.count_nonzero(beyond)),
        flips_without_margin=int(np.count_nonzero(~has_margin)),
        flips_without_any_margin=int(np.count_nonzero(np.isnan(flips.margin))),
        flips_for_candidate=int(np.count_nonzero(beyond & (flips.margin < 0))),
    )
    e.series["flips"][-1] = float(len(flipped))
    e.series["flips_beyond_margin"][-1] = float(np.count_nonzero(beyond))
    for kind, chosen in ((Kind.FLIP, beyond), (Kind.UNJUDGED_FLIP, ~has_margin)):
        if chosen.any():
            e.note_divergence(kind.of(), *flips.first(chosen, e.tolerance.margin))
    if benign.any():  # no divergence, unless there are too many (`note_improbable_flips`)
        e.ties.append(flips.first(benign, e.tolerance.margin))
    if far.any():
        samples, place = flips.first(far, e.tolerance.margin)
        e.far.append(FarChoices(Kind.FLIP.of(), samples, place, flips.margin[far], flips.table(far)))
    e.flips.append(flips.table(beyond))


@dataclass(frozen=True)
class _StepFlips:
    """The flips of one step, one entry each. `margin`, `best`: the learner's margin and its second choice."""

    tokens: AlignedTokens
    row: np.ndarray
    position: np.ndarray
    baseline: np.ndarray
    candidate: np.ndarray
    margin: np.ndarray
    best: np.ndarray

    @staticmethod
    def of(tokens: AlignedTokens, flipped: np.ndarray, lookup: Learner) -> _StepFlips:
        row, position, baseline = tokens.grid.row[flipped], tokens.grid.position[flipped], tokens.tokens_a[flipped]
        scored = lookup.at(row, position, baseline)
        return _StepFlips(tokens, row, position, baseline, tokens.tokens_b[flipped], *scored)

    def table(self, chosen: np.ndarray) -> FlipRows:
        """Return these flips as rows of the run's table."""
        steps, samples = np.full(np.count_nonzero(chosen), self.tokens.step), self.tokens.match.sample[self.row[chosen]]
        columns = (self.position[chosen], self.baseline[chosen], self.candidate[chosen])
        return FlipRows.of(steps, samples, *columns, margin=self.margin[chosen])

    def first(self, chosen: np.ndarray, tolerated: float) -> tuple[np.ndarray, Place]:
        """Return the samples of these flips, and the place of the first."""
        at = int(np.flatnonzero(chosen)[0])
        gap = float(self.margin[at])
        context = f"the learner's second choice is {int(self.best[at])}; "
        context += f"a gap up to {figure(tolerated)} would be benign"
        if np.isinf(gap):
            context = "one of the two lies outside of what top-k, top-p and min-p leave"
        place = Place(
            **self.tokens.at(self.row[at]),
            phase="rollout",
            position=int(self.position[at]),
            field="token",
            baseline=int(self.baseline[at]),
            candidate=int(self.candidate[at]),
            margin=gap if np.isfinite(gap) else None,
            context=context,
        )
        return self.tokens.match.sample[np.unique(self.row[chosen])], place


def _classified(
    e: EvidenceBuilder, flips: _StepFlips, second: Learner | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return masks of the flips: whether a margin judges them, whether they are ties, and whether they are far ones."""
    margin, is_second = flips.margin, flips.best == flips.candidate
    # An infinite margin means that one of the two tokens lies outside of what the filters leave. Rounding may move a
    # few tokens across that edge, but not many.
    outside = np.isinf(margin)
    rounding = e.tolerance.rounding  # in half precision most tokens round by far less than the cap
    typical = rounding.mean if e.tolerance.half and rounding.measured else e.tolerance.cap
    judged = implausible(int(outside.sum()), flips.tokens.grid.size, typical, e.tolerance.temperature)
    # In half precision rounding decides which of the two a filter leaves. In float32 no other token was left
    # (docs/reference/format.md).
    edge = outside & is_second & e.tolerance.half
    has_margin = np.isfinite(margin) | edge | (outside & judged)
    benign = has_margin & ((np.abs(margin) <= e.tolerance.margin) | edge) & is_second
    if second is not None:
        second_margin, best2 = second.at(flips.row, flips.position, flips.baseline)
        near = (np.abs(second_margin) <= e.tolerance.margin) | (np.isinf(second_margin) & e.tolerance.half)
        benign &= np.isnan(second_margin) | (near & (best2 == flips.candidate))
    far = has_margin & ~benign & (np.abs(margin) <= far_margin(e)) & is_second
    if second is not None and far_margin(e) > 0:  # rounding may move a filter's edge further than it moves most tokens
        edged = second.drawn_edge(flips.row, flips.position, flips.baseline) <= e.tolerance.extreme_drawn
        far |= edged & ~benign
        has_margin |= far
    return has_margin, benign, far
