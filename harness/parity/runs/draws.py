"""More draws of the native stage, until what both sides drew decides every quantity."""

from __future__ import annotations

from harness.cluster.experiment import Experiment
from harness.cluster.side import Side


def draw_on(
    experiment: Experiment, baseline_side: Side, candidate_side: Side, policy: str, *, cap: float | None
) -> None:
    """Let each side draw on, part by part, while another part may decide more of what both have drawn."""
    from harness.parity.subjects.native_sampler.observed_samples import (
        draws_of,  # the judge's libraries, which no run needs
    )
    from harness.parity.verdict import judged

    for draw in range(2, baseline_side.scenario.native.draws + 1):
        e = judged(baseline_side.run_dir, candidate_side.run_dir, cap=cap).evidence
        if e is None or e.native is None or not e.native.wants_more:
            return
        runs = (baseline_side, e.baseline), (candidate_side, e.candidate)
        experiment.native(
            *(side for side, recorded_side in runs if draws_of(recorded_side) < draw), policy=policy, draw=draw
        )
