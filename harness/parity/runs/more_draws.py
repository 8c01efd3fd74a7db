"""More draws of the native stage, until the samples of both sides decide every quantity."""

from __future__ import annotations

from harness.cluster.experiment import Experiment
from harness.cluster.side import Side
from harness.recordings.library import Library
from probes.format import FormatError


def draw_on(
    experiment: Experiment,
    baseline_side: Side,
    candidate_side: Side,
    policy: str,
    *,
    cap: float | None,
    library: Library,
) -> None:
    """Let each side draw another part, while another part may decide more."""
    from harness.parity.gather import native_stage_alone  # the judge's libraries, which no run needs
    from harness.parity.subjects.native_sampler.observed_samples import draws_of

    # The judge looks at a recording after each draw in the same way, so its verdict is the one that ended the drawing.
    for draw in range(2, len(baseline_side.scenario.native.sizes) + 1):
        try:
            e = native_stage_alone(library.open(baseline_side.run_dir), library.open(candidate_side.run_dir), cap=cap)
        except (FormatError, OSError):  # the verdict reports it
            return
        if e.native is None or not e.native.wants_more:
            return
        runs = (baseline_side, e.baseline), (candidate_side, e.candidate)
        experiment.native(
            *(side for side, recorded_side in runs if draws_of(recorded_side) < draw), policy=policy, draw=draw
        )
