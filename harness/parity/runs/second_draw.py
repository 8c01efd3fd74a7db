"""A second draw of the native stage: asked for by a difference in the first that may be chance."""

from __future__ import annotations

from harness.cluster.experiment import Experiment
from harness.cluster.side import Side


def second_draw(experiment: Experiment, left: Side, right: Side, policy: str, *, cap: float | None) -> bool:
    """Draw fresh samples on each side that has none yet, where the native stages leave a doubt; returns whether they
    did."""
    from harness.parity.native.samples import SECOND  # the judge's libraries, which no run needs
    from harness.parity.native.stage import in_doubt
    from harness.parity.verdict import judged

    e = judged(left.run_dir, right.run_dir, cap=cap).evidence
    if e is None or not in_doubt(e):
        return False
    runs = (left, e.baseline), (right, e.candidate)
    lacking = [side for side, own in runs if SECOND not in own.recording.steps("native")]
    experiment.native(*lacking, policy=policy, draw=2)
    return True
