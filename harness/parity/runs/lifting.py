"""The lifted stage of a pair of runs in half precision: is it run, does it fit, and what do its engines show?"""

from __future__ import annotations

from dataclasses import dataclass

from harness.cluster.experiment import Experiment
from harness.cluster.side import Side
from harness.cluster.waiting import RunCut
from harness.errors import BadInput
from reports.model import Verdict
from scenarios.lifted import lifts


def wanted(baseline_side: Side, candidate_side: Side, requested: bool | None) -> bool:
    """Whether these sides have a lifted stage. `requested`: by the user, None for what memory allows. Raises
    BadInput."""
    scenarios = baseline_side.scenario, candidate_side.scenario
    possible = all(map(lifts, scenarios)) and scenarios[0].model.dtype == scenarios[1].model.dtype
    if requested and not possible:
        raise BadInput(
            "--lifted computes in float32 with the weights of a run in half precision: it needs model.dtype bfloat16 "
            "or float16 on both sides, rollout.mode coupled or greedy, and lifted.samples above 0",
            fix="harness parity A B --set model.dtype=bfloat16 --lifted",
        )
    return possible and requested is not False


@dataclass
class Lifting:
    """The lifted stage of `left` and `right`. `forced`: whatever memory there is. `broken`: why it ended early, and
    with it what needs its engines; `verdict`: on its recordings, with what interventions proved, where they did."""

    experiment: Experiment
    left: Side
    right: Side
    forced: bool = False
    skipped: str = ""
    broken: str = ""
    verdict: Verdict | None = None

    def begin(self, *sides: Side) -> None:
        """Start the engines of these sides in float32, if they fit; returns at once."""
        if not self.skipped and not self.forced:
            self.skipped = self.experiment.no_room(self.left, self.right)
        for side in sides if not self.skipped else ():
            self.experiment.begin_lifted(side)

    def run(self, policy: str, *, attribution: bool) -> None:
        """Both stages, after `begin` of both, at the baseline's last weights in `policy`. Raises RunCut for a hang."""
        if self.skipped:
            self.skip(self.skipped)
            return
        try:
            guide = self.experiment.lift(self.left, policy)
            self.experiment.lift(self.right, policy, guide=guide)
            if attribution:
                self.verdict, self.broken = attributed(self.experiment, self.left, self.right)
        except RunCut as cut:
            if cut.triage is not None:
                raise
            self.broken = cut.message
            self.skip(cut.message)

    def skip(self, why: str) -> None:
        """Record that there is no lifted stage."""
        for side in (self.left, self.right):
            self.experiment.skip_lifted(side, why)


def attributed(experiment: Experiment, baseline_side: Side, candidate_side: Side) -> tuple[Verdict | None, str]:
    """(the verdict on both lifted stages with what interventions on their engines prove, None where nothing differs;
    why an intervention ended early)."""
    from harness.parity.attribution import merged, search
    from harness.parity.subjects.engines.observed import suspect
    from harness.parity.verdict import judged

    judgement = judged(baseline_side.lift().run_dir, candidate_side.lift().run_dir, native=False)
    if judgement.verdict.verdict != "DIVERGENT":
        return None, ""
    experiment.tell(candidate_side, "looking for the cause in float32")
    attribution = search(
        judgement, experiment.bench(baseline_side.name, candidate_side.name, engine=suspect(judgement.evidence))
    )
    return merged(judgement, attribution), attribution.broken
