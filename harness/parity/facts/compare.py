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
        drawn = [side.recording.table("rollout", step) for side in e.sides]
        trained = [side.recording.table("experience", step) for side in e.sides]
        for side, rollout, experience in zip(e.sides, drawn, trained, strict=True):
            side.witnesses.add(StepTables(step, rollout, experience))
        for side, rollout, experience in zip(e.sides, drawn, trained, strict=True):
            if rollout is not None:
                one_engine(e, side, rollout, experience)
        if e.alone:
            if drawn[0] is not None:
                e.guided = e.guided or bool(drawn[0].fields.get("guided"))
                ends.note_alone(e, e.baseline, drawn[0])
            if trained[0] is not None:
                note_experience(e, trained[0])
            elif e.train:
                e.note_recorded(TOKENS, step, False)
            continue
        if drawn[0] is None or drawn[1] is None:
            continue
        # A replay follows what the recorded run went on with; where that was guided, its engine drew other tokens.
        follows = drawn[0] if e.mode == "replay" else drawn[1]
        e.guided = bool(follows.fields.get("guided"))
        rollouts(e, drawn[0], drawn[1], trained)
        for side, own, experience in zip(e.sides, drawn, trained, strict=True):
            if own is not None and experience is not None:
                order.exchanged(side, drawn[0] if e.guided else own, own, experience)
        if trained[0] is not None and trained[1] is not None:
            experiences(e, trained[0], trained[1])
        elif e.train:
            e.note_recorded(TOKENS, step, *(table is not None for table in trained))


def _trained_only(e: Evidence, rolled_out: set[int]) -> None:
    """Let witnesses speak of steps without any rollout."""
    for side in e.sides:
        for step in side.recording.steps("experience"):
            if step not in rolled_out:
                side.witnesses.add(StepTables(step, None, side.recording.table("experience", step)))
