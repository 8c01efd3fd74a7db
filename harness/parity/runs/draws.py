"""More draws of the native stage, until what both sides drew decides every quantity."""

from __future__ import annotations

from harness.cluster.experiment import Experiment
from harness.cluster.side import Side


def draw_on(experiment: Experiment, left: Side, right: Side, policy: str, *, cap: float | None) -> None:
    """Let each side draw on, part by part, while another part may decide more of what both have drawn."""
    from harness.parity.subjects.native_sampler.observed_samples import (
        draws_of,  # the judge's libraries, which no run needs
    )
    from harness.parity.verdict import judged

    for draw in range(2, left.scenario.native.draws + 1):
        e = judged(left.run_dir, right.run_dir, cap=cap).evidence
        if e is None or e.native is None or not e.native.wants_more:
            return
        runs = (left, e.baseline), (right, e.candidate)
        experiment.native(*(side for side, own in runs if draws_of(own) < draw), policy=policy, draw=draw)
