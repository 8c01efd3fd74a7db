"""More draws of the native stage, until what both sides drew decides every quantity."""

from __future__ import annotations

from harness.cluster.experiment import Experiment
from harness.cluster.side import Side
from harness.recordings.library import Library


def draw_on(
    experiment: Experiment, left: Side, right: Side, policy: str, *, cap: float | None, library: Library
) -> None:
    """Let each side draw on, part by part, while another part may decide more of what both have drawn."""
    from harness.parity.gather import native_stage_alone  # the judge's libraries, which no run needs
    from harness.parity.native.samples import draws_of
    from probes.format import FormatError

    for draw in range(2, left.scenario.native.draws + 1):
        try:
            e = native_stage_alone(library.open(left.run_dir), library.open(right.run_dir), cap=cap)
        except (FormatError, OSError):  # the verdict says so
            return
        if e.native is None or not e.native.wants_more:
            return
        runs = (left, e.baseline), (right, e.candidate)
        experiment.native(*(side for side, own in runs if draws_of(own) < draw), policy=policy, draw=draw)
