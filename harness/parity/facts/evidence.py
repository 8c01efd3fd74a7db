"""The evidence of a comparison, or of one run alone: every fact that a check may look at, gathered in one pass over the
steps.

A divergence is kept three ways: how many (`counts`, `series`), where (`items`: step and sample, for causes to
explain), and the earliest (`first`: everything that PARITY asks of a first divergence).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import FrozenInstanceError, dataclass, field, fields, replace
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from harness.parity.facts.align import Grid, Match
from harness.parity.facts.divergence import Divergence, DivergenceKey, Kind, Stage
from harness.parity.subjects.engines.observed_lifecycle import Lifecycle, lifecycle
from harness.parity.subjects.engines.observed_memory import Held, recorded
from harness.parity.subjects.engines.observed_repetition import SecondRun
from harness.parity.subjects.log_probabilities.observed_clusters import Clusters
from harness.parity.subjects.log_probabilities.observed_metrics import Mismatch
from harness.parity.subjects.log_probabilities.observed_outliers import Bounds, Tail, Weighed
from harness.parity.subjects.log_probabilities.observed_rereading import Readings
from harness.parity.subjects.log_probabilities.observed_systematic import Drift, Means, Tested
from harness.parity.subjects.native_sampler.observed import NativeResult
from harness.parity.subjects.order.observed import Exchange, Source
from harness.parity.subjects.precision.observed_floor import EngineFloor, Tolerance
from harness.parity.subjects.precision.observed_lifted import LiftedResult
from harness.parity.subjects.prompts.observed_boundaries import TokenBoundaries
from harness.parity.subjects.ranks.observed import Ranks
from harness.parity.subjects.ranks.observed_faults import RankFault, What, rank_faults
from harness.parity.subjects.recording.observed_confounders import Confounder, Weights
from harness.parity.subjects.sampling.observed_margin_counts import Margins
from harness.parity.subjects.weights.observed_lag import InUse, Updates
from harness.parity.subjects.weights.observed_sync_record import SyncRecord
from harness.recordings.store import Recording
from harness.recordings.tables import Table
from reports.model import Finding, Place
from reports.text import counted

if TYPE_CHECKING:
    from harness.parity.subjects.recording.observed_step_consistency import StepWitnesses

ALONE = "run"  # what the only side of an audit is called


@dataclass
class Side:
    """One run of the comparison."""

    name: str
    recording: Recording
    floor: EngineFloor
    to_learner: Mismatch = field(default_factory=Mismatch)  # engine against learner
    samples: int = 0
    tokens: int = 0
    stops: dict[int, int] = field(default_factory=dict)  # token -> samples that stopped at it
    inner: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))  # times that each id was gone on from
    reasons_held: int = 0  # samples of an audit whose finish reason was held against their last token
    reasons: list[Reason] = field(default_factory=list)  # of those that it contradicts
    seen_samples: int = 0  # samples whose engine said which prompt it saw
    cached_tokens: int = 0
    trained_tokens: int = 0
    choices: int = 0  # that were held against the learner's
    choices_against_learner: int = 0
    versions: dict[int | None, list[int]] = field(default_factory=dict)  # weight version -> steps drawn with it
    no_experience: list[int] = field(default_factory=list)  # steps that could not be held against the learner
    uncompared: tuple[int, str] | None = None  # the first step of which the framework says why
    prompts: Prompts = field(default_factory=lambda: Prompts())
    native_prompts: Prompts = field(default_factory=lambda: Prompts())
    margins: Margins = field(default_factory=Margins)
    sync: SyncRecord = field(default_factory=SyncRecord)
    exchanged: dict[int, Exchange] = field(default_factory=dict)  # step -> whose responses were trained on
    collisions: Collisions | None = None  # of the native stage

    @cached_property
    def boundaries(self) -> TokenBoundaries:
        """The ends of its samples, as its journals tell them."""
        return TokenBoundaries(self.recording)

    @cached_property
    def witnesses(self) -> StepWitnesses:
        """What it says twice of each step; `compare` adds the steps."""
        from harness.parity.subjects.recording.observed_step_consistency import StepWitnesses

        return StepWitnesses(self.recording, self.boundaries)

    @cached_property
    def memory(self) -> list[Held]:
        """What each process held, step by step."""
        return recorded(self.recording)

    @cached_property
    def lifecycle(self) -> Lifecycle | None:
        """What its engines did in their sleep; None where they are to stay awake."""
        return lifecycle(self.recording, {step: version for version, steps in self.versions.items() for step in steps})

    @cached_property
    def ranks(self) -> Ranks:
        """What its learner's ranks recorded."""
        return Ranks(self.recording)

    @cached_property
    def rank_faults(self) -> tuple[RankFault, ...]:
        """What is wrong with them by that."""
        return rank_faults(self.ranks)

    def paired(self, value: Any, reference: Any) -> dict[str, Any]:
        """Fields of a `Place` where this side's own value stands against a reference."""
        baseline, candidate = (reference, value) if self.name == "candidate" else (value, reference)
        return {"baseline": baseline, "candidate": candidate}


@dataclass
class Counts:
    """How much was compared, and what it showed: tokens, unless another unit is named."""

    samples: int = 0  # judged
    other_prompts: int = 0  # samples
    drawn: int = 0  # of the judged samples, the longer response of each
    compared_tokens: int = 0
    after_first_difference: int = 0
    not_reached: int = 0  # under the guide
    beyond_ten_floors: int = 0
    flips: int = 0
    benign_flips: int = 0
    flips_beyond_margin: int = 0
    flips_without_margin: int = 0
    flips_without_any_margin: int = 0  # not even one without a bound
    flips_for_candidate: int = 0  # the learner sides with the candidate
    length_differences: int = 0  # samples
    finish_reasons: int = 0  # samples
    experience_samples: int = 0
    rewards: int = 0  # samples


@dataclass
class Flips:
    """Every flip beyond the margin: step, sample, position, the baseline's token and the candidate's, the margin."""

    parts: list[np.ndarray] = field(default_factory=list)  # (n, 5) integers
    margins: list[np.ndarray] = field(default_factory=list)
    with_any: list[np.ndarray] = field(default_factory=list)  # (step, sample) of samples with any flip at all

    def add(self, *columns: np.ndarray, margin: np.ndarray) -> None:
        self.parts.append(np.stack(columns, axis=1).astype(np.int64))
        self.margins.append(margin)

    @property
    def table(self) -> np.ndarray:
        return np.concatenate(self.parts) if self.parts else np.empty((0, 5), np.int64)

    @property
    def margin(self) -> np.ndarray:
        return np.concatenate(self.margins) if self.margins else np.zeros(0)

    @property
    def samples(self) -> np.ndarray:
        """(step, sample) of every sample with a flip, benign ones included."""
        return np.concatenate(self.with_any) if self.with_any else np.empty((0, 2), np.int64)


@dataclass(frozen=True)
class Far:
    """Of one step: choices that one of the few tokens may turn over which half precision rounds beyond the tolerance.
    `columns`: of `Flips.add`, where they are flips."""

    key: DivergenceKey
    samples: np.ndarray
    place: Place
    margin: np.ndarray
    columns: tuple[np.ndarray, ...] = ()


class OtherDivisor(NamedTuple):
    """Gradients of equal weights on an equal batch that another divisor of the loss explains. `side`: the run that
    does not divide by the mini-batch's tokens; empty where that is not told. `what`: what the divisor depends on."""

    side: str
    text: str
    what: str = What.DIVISOR


@dataclass
class Learners:
    """Learner against learner: the steps of each run's updates, those that are equal, and where they part."""

    updates: dict[str, list[int]] = field(default_factory=dict)
    equal: list[int] = field(default_factory=list)
    parted: int | None = None  # the step after which they differ, and then one of the reasons below, or none
    cuts: list[Finding] = field(default_factory=list)  # settings that cut the same batch otherwise
    norms: str = ""  # how far the gradients are apart of the update in which such a setting parts the learners
    confounded: str = ""
    followed: int | None = None  # they trained on other tokens
    reordered: int | None = None  # they took the samples in another order
    scaled: OtherDivisor | None = None
    losses_differ: dict[str, int] = field(default_factory=dict)  # in their last digits: loss -> its first step


@dataclass
class Experience:
    """What the learners made of the same tokens; by column."""

    other_tokens: list[int] = field(default_factory=list)  # steps that were trained on other tokens
    not_identical: dict[str, int] = field(default_factory=dict)  # not bit for bit: the first step
    apart: dict[str, tuple[float, float]] = field(default_factory=dict)  # largest |Δ| within what is allowed, and that
    means: dict[str, dict[int, Clusters]] = field(default_factory=dict)  # step -> sums of the differences
    untested: dict[str, str] = field(default_factory=dict)  # why no mean difference was tested


@dataclass
class Rollouts:
    """Engine against engine, beside the divergences."""

    no_logprobs: list[int] = field(default_factory=list)  # steps of which a token has no log-probability
    odd_unreached: dict[str, tuple[int, Any, int]] = field(default_factory=dict)  # side -> step, said, lacking
    weights_unknown: list[int] = field(default_factory=list)  # steps of which no record says that they are equal
    prompts_unknown: list[int] = field(default_factory=list)
    given_up: dict[int, int] = field(default_factory=dict)  # step -> samples that both engines ended themselves
    sources: list[Source] = field(default_factory=list)
    ties: list[tuple[np.ndarray, Place]] = field(default_factory=list)  # benign flips of a step, and the first of them
    far: list[Far] = field(default_factory=list)
    too_many_flips: bool = False  # without a margin, for engines within the tolerance of each other
    too_many_ties: bool = False


@dataclass
class Prompts:
    """Prompts that an engine saw otherwise than they were sent: what became of them -> where, and how long it was."""

    kinds: dict[str, list[tuple[int, int]]] = field(default_factory=dict)  # (step, sample)
    lengths: dict[str, list[int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Collisions:
    """Equal native samples of one prompt."""

    equal: int  # pairs
    expected: float
    clones: int  # samples

    def facts(self) -> dict[str, Any]:
        """For a verdict's details."""
        return {"equal pairs": self.equal, "expected": self.expected, "samples": self.clones}


@dataclass(frozen=True)
class Learned:
    """What live engines showed, with which the recordings may name other causes."""

    # (step, sample, position) of a flip -> do both tokens read the same?
    aloud: Mapping[tuple[int, int, int], bool] = field(default_factory=dict)
    past_cache: tuple[str, ...] = ()  # sides that differ with nothing from a cache


@dataclass(frozen=True)
class Ending:
    """A sample of unequal lengths whose tokens agree as far as both go: (baseline, candidate) of each."""

    step: int
    sample: int
    sent: int  # tokens of the prompt
    seen: tuple[int, int]  # tokens of the prompt that either engine saw
    lengths: tuple[int, int]
    finish: tuple[str, str]  # "" where it was not recorded
    shorter_last: int  # the last token that both have, with which the shorter one ends; -1 without any
    longer_next: int  # what the longer one goes on with
    longer_last: int


class Reason(NamedTuple):
    """A sample with equal tokens and other finish reasons: (baseline, candidate); of one run, what it says and ""."""

    step: int
    sample: int
    length: int
    last: int  # token
    finish: tuple[str, str]


@dataclass
class Evidence:
    """What was found; filled by `gather`, sealed, and then read by checks, rules and attribution."""

    baseline: Side
    candidate: Side
    tolerance: Tolerance
    confounders: list[Confounder]
    weights: Weights
    mode: str  # coupled, greedy, native, replay
    finer: Tolerance | None = None  # of engines that both compute in a finer type than the learners
    engines: Mismatch = field(default_factory=Mismatch)  # candidate against baseline
    guided: bool = False
    first: dict[DivergenceKey, Divergence] = field(default_factory=dict)
    places: dict[DivergenceKey, dict[int, Divergence]] = field(default_factory=dict)  # step -> its earliest
    items: dict[DivergenceKey, list[np.ndarray]] = field(default_factory=dict)  # arrays of (step, sample)
    # What -> step -> was it recorded whole in each side? Read by `gaps`.
    recorded: dict[str, dict[int, tuple[bool, ...]]] = field(default_factory=dict)
    counts: Counts = field(default_factory=Counts)
    missing: list[str] = field(default_factory=list)
    unmatched: list[str] = field(default_factory=list)
    repeated: list[str] = field(default_factory=list)  # a number that several samples have aligns nothing
    steps: list[int] = field(default_factory=list)  # steps that both runs rolled out
    unjudged_steps: dict[int, str] = field(default_factory=dict)  # step -> why its rollouts were not compared
    series: dict[str, list[float]] = field(default_factory=dict)
    tails: dict[DivergenceKey, Tail] = field(default_factory=dict)
    drifts: dict[Means, Drift] = field(default_factory=dict)  # mean differences
    updates: dict[str, Updates] = field(default_factory=dict)  # side -> its engine against two weight versions
    readings: dict[DivergenceKey, Readings] = field(default_factory=dict)  # what re-readings leave of a difference
    flips: Flips = field(default_factory=Flips)
    endings: list[Ending] = field(default_factory=list)
    reasons: list[Reason] = field(default_factory=list)
    second_runs: dict[str, SecondRun] = field(default_factory=dict)  # by side
    cap: float | None = None  # that the user set
    modes_unclear: list[str] = field(default_factory=list)
    seeded: bool = False  # runs of one framework with one engine and equal seeds
    train: bool = False
    rollouts: Rollouts = field(default_factory=Rollouts)
    experience: Experience = field(default_factory=Experience)
    learners: Learners = field(default_factory=Learners)
    margins_apart: tuple[int, int, int] | None = None  # step, margins that both learners give otherwise, of so many
    odd_columns: set[str] = field(default_factory=set)  # recorded, and not whole: not the same as never recorded
    drift_tests: dict[Means, list[Tested]] = field(default_factory=dict)
    weights_in_use: dict[str, InUse] = field(default_factory=dict)  # by side, in half precision
    native: NativeResult | None = None
    lifted: LiftedResult | None = None
    learned: Learned = field(default_factory=Learned)
    sealed: bool = field(default=False, init=False, repr=False, compare=False)

    def seal(self) -> Evidence:
        """Everything was gathered: no field can be set any more, and its dictionaries and lists are read-only views.

        What a stage put into a record of its own (`Side`, `Rollouts`, `Learners`, ...) is left as it is.
        """
        for attribute in fields(self):
            value = getattr(self, attribute.name)
            if isinstance(value, dict):
                setattr(self, attribute.name, MappingProxyType(value))
            elif isinstance(value, list):
                setattr(self, attribute.name, tuple(value))
        self.sealed = True
        return self

    def __setattr__(self, name: str, value: Any) -> None:
        if getattr(self, "sealed", False):
            raise FrozenInstanceError(f"{name} of evidence that was gathered is not set again")
        super().__setattr__(name, value)

    def side(self, name: str) -> Side:
        return self.candidate if name == "candidate" else self.baseline

    @property
    def alone(self) -> bool:
        """Is it one run that is judged by itself? Then it stands in both places."""
        return self.baseline is self.candidate

    @property
    def sides(self) -> tuple[Side, ...]:
        return (self.baseline,) if self.alone else (self.baseline, self.candidate)

    @property
    def of_engines(self) -> Tolerance:
        """What engines may differ by from each other and from themselves; `tolerance` is for what learners take part
        in."""
        return self.finer or self.tolerance

    @property
    def mean_floor(self) -> float:
        """The larger mean |Δ| of an engine against itself, nats; NaN unless both were measured, or the one run of a job
        that was repeated."""
        floors = [side.floor for side in self.sides if not self.second_runs or side.name in self.second_runs
                  or side.floor.measured]  # fmt: skip
        return max(floor.changed_mean for floor in floors) if all(floor.measured for floor in floors) else float("nan")

    def tolerated(self, kind: Kind) -> Tolerance:
        """What counts as equal in this kind of comparison."""
        if kind.stage is Stage.NATIVE and self.tolerance.rounding.native is not None:
            return replace(self.tolerance, share=self.tolerance.rounding.native)
        return self.of_engines if kind is Kind.LOGPROB else self.tolerance

    def beyond(self, key: DivergenceKey) -> int:
        """How many tokens of a comparison lie beyond the tolerance, tolerated outliers included."""
        return self.tails[key].beyond if key in self.tails else 0

    def note_recorded(self, what: str, step: int, *sides: bool) -> None:
        self.recorded.setdefault(what, {})[step] = sides

    def diverges(self, key: DivergenceKey, samples: Any, place: Place, *, phase: str | None = None) -> None:
        """Note divergences of one kind in one step; `place` is the earliest of them. `samples` may be empty: not per
        sample.
        """
        divergence = Divergence(*key, place, phase or place.phase)
        if key not in self.first or divergence.order < self.first[key].order:
            self.first[key] = divergence
        earliest_by_step = self.places.setdefault(key, {})
        if place.step not in earliest_by_step or divergence.order < earliest_by_step[place.step].order:
            earliest_by_step[place.step] = divergence
        samples = np.asarray(samples, np.int64).reshape(-1)
        samples = samples if len(samples) else np.array([-1])
        self.items.setdefault(key, []).append(np.stack([np.full(len(samples), place.step), samples], axis=1))

    def differs(
        self, key: DivergenceKey, weighed: Weighed, samples: Any, place: Place, *, phase: str | None = None
    ) -> bool:
        """Note one step's differences beyond the tolerance; returns whether they are more than outliers.

        A few outliers a step are kept back: `settle` counts them over the whole run.
        """
        if weighed.diverges:
            self.diverges(key, samples, place, phase=phase)
        else:
            self.tail(key).kept.append((samples, place))
        return weighed.diverges

    def tail(self, key: DivergenceKey) -> Tail:
        return self.tails.setdefault(key, Tail())

    def weigh(self, key: DivergenceKey, grid: Grid, compared: np.ndarray, size: np.ndarray) -> Weighed:
        """One step's |differences| of log-probabilities against the tolerance, added to the run's tail."""
        tolerance = self.tolerated(key.kind)
        spared = tolerance.spared(int(np.count_nonzero(compared)))
        extreme = tolerance.extreme if key.kind.stage is Stage.NATIVE else tolerance.extreme_drawn
        weighed = Weighed.of(grid, compared, size, Bounds(tolerance.value, extreme, tolerance.share, spared))
        self.tail(key).add(weighed)
        return weighed

    def settle(self) -> None:
        """Outliers of steps that do not diverge by themselves, too many together, are divergences after all."""
        for key, tail in self.tails.items():
            if tail.too_many:
                for samples, place in tail.kept:
                    self.diverges(key, samples, place)
            tail.kept = []

    def found(self, key: DivergenceKey) -> np.ndarray:
        """(step, sample) of every divergence of a kind."""
        parts = self.items.get(key)
        return np.concatenate(parts) if parts else np.empty((0, 2), np.int64)

    def earliest(self, *keys: DivergenceKey) -> Place | None:
        """Where the first divergence among these kinds begins."""
        divergences = [self.first[key] for key in keys if key in self.first]
        return min(divergences, key=lambda divergence: divergence.order).place if divergences else None

    def confounded(self, *scopes: str, step: int | None = None) -> Confounder | None:
        """The first confounder of one of these scopes that acts in `step` or before."""
        acting = [
            confounder
            for confounder in self.confounders
            if confounder.scope in scopes and (step is None or confounder.step <= step)
        ]
        return min(acting, key=lambda confounder: confounder.step) if acting else None

    def unpaired(self, match: Match, where: str, only_a: str, only_b: str) -> None:
        """Note samples without a partner: missing evidence, never skipped in silence."""
        for what, samples in ((only_a, match.only_a), (only_b, match.only_b)):
            if len(samples):
                self.unmatched.append(
                    f"{where}: {what}: {counted(len(samples), 'sample')}, the first is {int(samples[0])}"
                )
        if len(match.repeated):
            self.repeated.append(f"{where}: sample {int(match.repeated[0])} was recorded more than once")


def version_of(table: Table) -> int:
    """The weight version that a frame was drawn with; -1 where it was not recorded."""
    return -1 if table.header.weight_version is None else table.header.weight_version
