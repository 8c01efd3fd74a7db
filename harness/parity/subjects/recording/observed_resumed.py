"""Runs that were resumed from a checkpoint: the steps that two recordings share, and those of one of them only."""

from __future__ import annotations

from collections.abc import Sequence

from harness.parity.facts.evidence import Evidence
from harness.recordings.store import Recording


def resumed(recording: Recording) -> int:
    """Return the first step of a resumed run, from its run.json; 0 for a run that was not resumed."""
    return max(recording.records.manifest.resumed_step or 0, 0)


def shared(recordings: Sequence[Recording]) -> range | None:
    """Return the steps that every one of these recordings can have; None where none of them was resumed."""
    first = max(map(resumed, recordings))
    ends = [recording.promised_steps for recording in recordings]
    ends += [step + 1 for recording in recordings for step in recording.steps("rollout")]
    return range(first, max(ends)) if 0 < first < max(ends, default=0) else None


def not_shared(e: Evidence) -> list[str]:
    """Return a sentence for each resumed run on the steps before it began, which were not compared."""
    sentences = []
    for side in e.sides:
        first = resumed(side.recording)
        if first:
            path = side.recording.records.manifest.resumed_path
            before = "step 0 was" if first == 1 else f"steps 0 to {first - 1} were"
            where = f"step {first}" + (f" ({path})" if path else "")
            sentences.append(f"{before} not compared: the {side.name} was resumed at {where}")
    return sentences
