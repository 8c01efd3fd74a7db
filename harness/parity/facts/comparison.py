"""What is known of a comparison before its first step is read: its two runs, its tolerances and what confounds them.

The stages that gather evidence and the judges that read it both know this much. A function that takes a `Comparison`
serves either.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from harness.parity.facts.divergence import Kind, Stage
from harness.parity.subjects.engines.observed_repetition import SecondRun
from harness.parity.subjects.precision.observed_floor import EngineFloor, Tolerance
from harness.parity.subjects.prompts.observed_boundaries import TokenBoundaries
from harness.parity.subjects.ranks.observed import Ranks
from harness.parity.subjects.recording.observed_confounders import Confounder, Weights
from harness.recordings.store import Recording

ALONE = "run"  # name of the only side of an audit


@dataclass(frozen=True, eq=False)
class RecordedSide:
    """One run of the comparison, as its recording shows it."""

    name: str
    recording: Recording
    floor: EngineFloor
    ranks: Ranks  # the records of its learner's ranks
    boundaries: TokenBoundaries  # the recorded ends of its samples

    def paired(self, value: Any, reference: Any) -> dict[str, Any]:
        """Return the fields of a `Place` that set this side's own value against a reference."""
        baseline, candidate = (reference, value) if self.name == "candidate" else (value, reference)
        return {"baseline": baseline, "candidate": candidate}


SideT = TypeVar("SideT", bound=RecordedSide, covariant=True)


@dataclass(frozen=True, eq=False, kw_only=True)
class Comparison(Generic[SideT]):
    """Two runs, or one run alone, and what they are held against."""

    baseline: SideT
    candidate: SideT
    tolerance: Tolerance
    confounders: Sequence[Confounder]
    weights: Weights
    mode: str  # coupled, greedy, native, replay
    finer: Tolerance | None = None  # where both engines compute in a finer type than the learners
    cap: float | None = None  # set by the user
    seeded: bool = False  # runs of one framework with one engine and equal seeds
    train: bool = False
    second_runs: Mapping[str, SecondRun] = field(default_factory=dict)  # by side
    modes_unclear: tuple[str, ...] = ()

    def side(self, name: str) -> SideT:
        return self.candidate if name == "candidate" else self.baseline

    def other_side(self, side: RecordedSide) -> SideT:
        """Return what a side is compared with; itself for one run alone."""
        return self.candidate if side is self.baseline else self.baseline

    @property
    def alone(self) -> bool:
        """Whether one run is judged by itself. It then stands in both places."""
        return self.baseline is self.candidate

    @property
    def sides(self) -> tuple[SideT, ...]:
        return (self.baseline,) if self.alone else (self.baseline, self.candidate)

    @property
    def of_a_framework(self) -> bool:
        """Whether a run is the job of a framework, which says less about itself than the harness's own runs."""
        return any(side.recording.records.manifest.framework for side in self.sides)

    @property
    def of_engines(self) -> Tolerance:
        """Return what engines may differ by from each other and from themselves. `tolerance` is for comparisons with
        learners.
        """
        return self.finer or self.tolerance

    @property
    def mean_floor(self) -> float:
        """Return the larger mean |Δ| of an engine against itself, nats; NaN where a required floor was not measured.

        Where only one job was run a second time, its floor alone is required.
        """
        repeated = self.second_runs
        floors = [side.floor for side in self.sides if not repeated or side.name in repeated or side.floor.measured]
        if not all(floor.measured for floor in floors):
            return float("nan")
        return max(floor.changed_mean for floor in floors)

    def tolerated(self, kind: Kind) -> Tolerance:
        """Return what counts as equal in this kind of comparison."""
        if kind.stage is Stage.NATIVE and self.tolerance.rounding.native is not None:
            return replace(self.tolerance, share=self.tolerance.rounding.native)
        return self.of_engines if kind is Kind.LOGPROB else self.tolerance

    def extreme(self, kind: Kind) -> float:
        """Return the difference, in nats, that no single token may exceed in this kind of comparison."""
        tolerance = self.tolerated(kind)
        return tolerance.extreme if kind.stage is Stage.NATIVE else tolerance.extreme_drawn

    def confounded(self, *scopes: str, step: int | None = None) -> Confounder | None:
        """Return the first confounder of one of these scopes that acts in `step` or before."""
        acting = [
            confounder
            for confounder in self.confounders
            if confounder.scope in scopes and (step is None or confounder.step <= step)
        ]
        return min(acting, key=lambda confounder: confounder.step) if acting else None
