"""One pass over the steps of two recordings: rollout against rollout, engine against learner, learner against learner.

A recording that is judged alone has engine against learner only.
"""

from __future__ import annotations

from harness.parity.facts.evidence_builder import EvidenceBuilder
from harness.parity.facts.progress_messages import ProgressCallback, ignore_progress
from harness.parity.subjects.engines.observed_against_learner import rollout_of_side
from harness.parity.subjects.learner import observed_returns
from harness.parity.subjects.learner.observed_applied_loss import LossSums
from harness.parity.subjects.learner.observed_experience import experiences
from harness.parity.subjects.learner.observed_returns import ReturnSums
from harness.parity.subjects.order import observed as order_observed
from harness.parity.subjects.recording.observed_missing_steps import TOKENS, note_experience
from harness.parity.subjects.recording.observed_step_consistency import StepTables, StepWitnesses
from harness.parity.subjects.sampling.observed_rollouts import SERIES, rollouts
from harness.parity.subjects.stop_conditions import observed as stop_conditions_observed
from harness.recordings.work import WORK


def compare(e: EvidenceBuilder, tell: ProgressCallback = ignore_progress) -> None:
    """Fill `e` from every step that either run rolled out. Raises FormatError for a malformed frame."""
    for directory in {side.recording.path for side in e.sides}:
        WORK["gather", str(directory)] += 1
    e.series = {name: [] for name in SERIES}
    recorded = [set(side.recording.steps("rollout")) for side in e.sides]
    e.steps = sorted(set.intersection(*recorded))
    all_steps = sorted(set.union(*recorded))
    contradictions = {side.name: StepWitnesses(side.recording, side.boundaries) for side in e.sides}
    returns = {side.name: ReturnSums() for side in e.sides}
    losses = {side.name: LossSums.of(side) for side in e.sides}
    _trained_only(e, set(all_steps), contradictions)
    for number, step in enumerate(all_steps, 1):
        tell(f"comparing step {number} of {len(all_steps)}")
        tables = [
            StepTables(step, side.recording.table("rollout", step), side.recording.table("experience", step))
            for side in e.sides
        ]
        for side, of_side in zip(e.sides, tables, strict=True):
            # The contradictions first: they say whether the experience is what was trained on.
            contradictions[side.name].add(of_side)
            scored_before = side.to_learner.tokens
            if of_side.rollout is not None:
                rollout_of_side(e, side, of_side.rollout, of_side.experience)
            if contradictions[side.name].batch_agrees.get(step, True):  # else the experience is not what it was
                observed_returns.note(e, side, returns[side.name], of_side)
                losses[side.name].add(e, side, of_side, side.to_learner.tokens - scored_before)
        if e.alone:
            _alone(e, tables[0])
        else:
            _pair(e, tables[0], tables[1])
    for side in e.sides:
        side.witnesses = contradictions[side.name].witnesses()
        side.returns = returns[side.name].returns(e, side)
        side.applied_losses = losses[side.name].losses(e, side)


def _alone(e: EvidenceBuilder, tables: StepTables) -> None:
    if tables.rollout is not None:
        e.guided = e.guided or tables.rollout.header.guided
        stop_conditions_observed.note_alone(e, e.baseline, tables.rollout)
    if tables.experience is not None:
        note_experience(e, tables.experience)
    elif e.train:
        e.note_recorded(TOKENS, tables.step, False)


def _pair(e: EvidenceBuilder, baseline: StepTables, candidate: StepTables) -> None:
    if baseline.rollout is None or candidate.rollout is None:
        return
    # A replay trains on the recorded run's tokens. Where that run was guided, they are not those that its engine drew.
    follows = baseline.rollout if e.mode == "replay" else candidate.rollout
    e.guided = follows.header.guided
    rollouts(e, baseline.rollout, candidate.rollout, [baseline.experience, candidate.experience])
    for side, rollout, experience in (
        (e.baseline, baseline.rollout, baseline.experience),
        (e.candidate, candidate.rollout, candidate.experience),
    ):
        if experience is not None:
            order_observed.exchanged(side, baseline.rollout if e.guided else rollout, rollout, experience)
    if baseline.experience is not None and candidate.experience is not None:
        experiences(e, baseline.experience, candidate.experience)
    elif e.train:
        e.note_recorded(TOKENS, baseline.step, baseline.experience is not None, candidate.experience is not None)


def _trained_only(e: EvidenceBuilder, rolled_out: set[int], contradictions: dict[str, StepWitnesses]) -> None:
    """Check steps without any rollout for contradictions."""
    for side in e.sides:
        for step in side.recording.steps("experience"):
            if step not in rolled_out:
                contradictions[side.name].add(StepTables(step, None, side.recording.table("experience", step)))
