"""The lifted stage of a pair of runs in half precision: whether it is run, whether it fits, and what its engines
show.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.cluster.experiment import Experiment
from harness.cluster.side import Side
from harness.cluster.waiting import RunCut
from harness.errors import BadInput
from reports.model import Verdict
from scenarios.lifted import lifts


def wanted(baseline_side: Side, candidate_side: Side, requested: bool | None) -> bool:
    """Whether these sides have a lifted stage.

    `requested`: by the user; None runs it if memory allows. Raises BadInput.
    """
    scenarios = baseline_side.scenario, candidate_side.scenario
    possible = all(map(lifts, scenarios)) and scenarios[0].model.dtype == scenarios[1].model.dtype
    if requested and not possible:
        raise BadInput(
            "--lifted computes in float32 with the weights of a run in half precision: it needs model.dtype bfloat16 "
            "or float16 on both sides, rollout.mode coupled or greedy, and lifted.samples above 0",
            fix="--set model.dtype=bfloat16",
        )
    return possible and requested is not False


@dataclass
class Lifting:
    """The lifted stage of `left` and `right`.

    `forced`: run it whatever memory there is. `broken`: why it ended early, which also ends what needs its engines.
    `verdict`: on its recordings, with what interventions proved, if there were any.
    """

    experiment: Experiment
    baseline: Side
    candidate: Side
    forced: bool = False
    skipped: str = ""
    broken: str = ""
    verdict: Verdict | None = None

    def begin(self, *sides: Side) -> None:
        """Start the engines of these sides in float32, if they fit. Returns at once."""
        if not self.skipped and not self.forced:
            self.skipped = self.experiment.no_room(self.baseline, self.candidate)
        if self.skipped:
            return
        for side in sides:
            self.experiment.begin_lifted(side)

    def run(self, policy: str, *, attribution: bool) -> None:
        """Run both stages at the baseline's last weights in `policy`, after `begin` of both. Raises RunCut for a
        hang.
        """
        if self.skipped:
            self.skip(self.skipped)
            return
        try:
            guide = self.experiment.lift(self.baseline, policy)
            self.experiment.lift(self.candidate, policy, guide=guide)
            if attribution:
                self.verdict, self.broken = attributed(self.experiment, self.baseline, self.candidate)
        except RunCut as cut:
            if cut.triage is not None:
                raise
            self.broken = cut.message
            self.skip(cut.message)

    def skip(self, why: str) -> None:
        """Record that there is no lifted stage, and why."""
        for side in (self.baseline, self.candidate):
            self.experiment.skip_lifted(side, why)


def attributed(experiment: Experiment, baseline_side: Side, candidate_side: Side) -> tuple[Verdict | None, str]:
    """Return (verdict on both lifted stages with what interventions prove, why an intervention ended early).

    The verdict is None where nothing differs.
    """
    from harness.parity.attribution import merged, search
    from harness.parity.subjects.engines.observed import suspect
    from harness.parity.verdict import judged_pair

    judgement = judged_pair(baseline_side.lift().run_dir, candidate_side.lift().run_dir, native=False)
    if judgement.verdict.verdict != "DIVERGENT":
        return None, ""
    experiment.tell(candidate_side, "looking for the cause in float32")
    attribution = search(
        judgement, experiment.bench(baseline_side.name, candidate_side.name, engine=suspect(judgement.evidence))
    )
    return merged(judgement, attribution), attribution.broken
