"""Runs that went on from a checkpoint: which steps two recordings can share, and which are in one of them only."""

from __future__ import annotations

from collections.abc import Sequence

from harness.parity.facts.evidence import Evidence
from harness.recordings.store import Recording


def resumed(recording: Recording) -> int:
    """The first step of a run that was resumed, from its run.json; 0 for one that began at its beginning."""
    return max(recording.records.manifest.resumed_step or 0, 0)


def shared(recordings: Sequence[Recording]) -> range | None:
    """The steps from which on every one of these recordings goes; None where none of them was resumed."""
    first = max(map(resumed, recordings))
    ends = [recording.promised_steps for recording in recordings]
    ends += [step + 1 for recording in recordings for step in recording.steps("rollout")]
    return range(first, max(ends)) if 0 < first < max(ends, default=0) else None


def not_shared(e: Evidence) -> list[str]:
    """What no comparison of these runs says anything about: the steps before a resumed one begins."""
    sentences = []
    for side in e.sides:
        first = resumed(side.recording)
        if first:
            path = side.recording.records.manifest.resumed_path
            before = "step 0 was" if first == 1 else f"steps 0 to {first - 1} were"
            where = f"step {first}" + (f" ({path})" if path else "")
            sentences.append(f"{before} not compared: the {side.name} was resumed at {where}")
    return sentences
