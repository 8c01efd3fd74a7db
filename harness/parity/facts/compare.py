"""One pass over the steps of two recordings: rollouts against each other, each engine against its learner, learner
against learner. Of one recording alone: its engine against its learner.
"""

from __future__ import annotations

from harness.parity.facts import ends, order
from harness.parity.facts.evidence import Evidence
from harness.parity.facts.experience import experiences
from harness.parity.facts.gaps import TOKENS, note_experience
from harness.parity.facts.one_engine import one_engine
from harness.parity.facts.patience import Told, nobody
from harness.parity.facts.rollouts import SERIES, rollouts
from harness.parity.facts.step_witnesses import StepTables
from harness.recordings.work import WORK


def compare(e: Evidence, tell: Told = nobody) -> None:
    """Fill `e` from every step that either run rolled out. Raises FormatError for a malformed frame."""
    for directory in {side.recording.path for side in e.sides}:
        WORK["gather", str(directory)] += 1
    e.series = {name: [] for name in SERIES}
    recorded = [set(side.recording.steps("rollout")) for side in e.sides]
    e.steps = sorted(set.intersection(*recorded))
    every = sorted(set.union(*recorded))
    _trained_only(e, set(every))
    for number, step in enumerate(every, 1):
        tell(f"comparing step {number} of {len(every)}")
        tables = [
            StepTables(step, side.recording.table("rollout", step), side.recording.table("experience", step))
            for side in e.sides
        ]
        for side, own in zip(e.sides, tables, strict=True):
            side.witnesses.add(own)
            if own.rollout is not None:
                one_engine(e, side, own.rollout, own.experience)
        if e.alone:
            _alone(e, tables[0])
        else:
            _pair(e, tables[0], tables[1])


def _alone(e: Evidence, tables: StepTables) -> None:
    if tables.rollout is not None:
        e.guided = e.guided or bool(tables.rollout.fields.get("guided"))
        ends.note_alone(e, e.baseline, tables.rollout)
    if tables.experience is not None:
        note_experience(e, tables.experience)
    elif e.train:
        e.note_recorded(TOKENS, tables.step, False)


def _pair(e: Evidence, baseline: StepTables, candidate: StepTables) -> None:
    if baseline.rollout is None or candidate.rollout is None:
        return
    # A replay follows what the recorded run went on with; where that was guided, its engine drew other tokens.
    follows = baseline.rollout if e.mode == "replay" else candidate.rollout
    e.guided = bool(follows.fields.get("guided"))
    rollouts(e, baseline.rollout, candidate.rollout, [baseline.experience, candidate.experience])
    for side, rollout, experience in (
        (e.baseline, baseline.rollout, baseline.experience),
        (e.candidate, candidate.rollout, candidate.experience),
    ):
        if experience is not None:
            order.exchanged(side, baseline.rollout if e.guided else rollout, rollout, experience)
    if baseline.experience is not None and candidate.experience is not None:
        experiences(e, baseline.experience, candidate.experience)
    elif e.train:
        e.note_recorded(TOKENS, baseline.step, baseline.experience is not None, candidate.experience is not None)


def _trained_only(e: Evidence, rolled_out: set[int]) -> None:
    """Let witnesses speak of steps without any rollout."""
    for side in e.sides:
        for step in side.recording.steps("experience"):
            if step not in rolled_out:
                side.witnesses.add(StepTables(step, None, side.recording.table("experience", step)))
