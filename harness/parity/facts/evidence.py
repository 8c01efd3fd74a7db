"""The evidence of a comparison, or of one run alone: every fact that a check may use, gathered in one pass over the
steps.

A divergence is kept in three ways: how many (`counts`, `series`), where (`items`: step and sample, for causes to
explain), and the earliest (`first`: everything that a report says about a first divergence).
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

ALONE = "run"  # name of the only side of an audit


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
    inner: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))  # id -> times a response went on after it
    reasons_held: int = 0  # samples of an audit whose finish reason was compared with their last token
    reasons: list[Reason] = field(default_factory=list)  # those of them that it contradicts
    seen_samples: int = 0  # samples whose engine reported the prompt that it saw
    cached_tokens: int = 0
    trained_tokens: int = 0
    choices: int = 0  # choices that were compared with the learner's
    choices_against_learner: int = 0
    versions: dict[int | None, list[int]] = field(default_factory=dict)  # weight version -> steps drawn with it
    no_experience: list[int] = field(default_factory=list)  # steps that could not be compared with the learner
    uncompared: tuple[int, str] | None = None  # the first step of which a framework says why
    prompts: Prompts = field(default_factory=lambda: Prompts())
    native_prompts: Prompts = field(default_factory=lambda: Prompts())
    margins: Margins = field(default_factory=Margins)
    sync: SyncRecord = field(default_factory=SyncRecord)
    exchanged: dict[int, Exchange] = field(default_factory=dict)  # step -> samples trained on with others' responses
    collisions: Collisions | None = None  # among the native samples

    @cached_property
    def boundaries(self) -> TokenBoundaries:
        """Return the recorded ends of its samples."""
        return TokenBoundaries(self.recording)

    @cached_property
    def witnesses(self) -> StepWitnesses:
        """Return its contradictions step by step; `compare` adds the steps."""
        from harness.parity.subjects.recording.observed_step_consistency import StepWitnesses

        return StepWitnesses(self.recording, self.boundaries)

    @cached_property
    def memory(self) -> list[Held]:
        """Return the memory of each process, step by step."""
        return recorded(self.recording)

    @cached_property
    def lifecycle(self) -> Lifecycle | None:
        """Return the sleep of its engines; None where they should stay awake and did."""
        return lifecycle(self.recording, {step: version for version, steps in self.versions.items() for step in steps})

    @cached_property
    def ranks(self) -> Ranks:
        """Return the records of its learner's ranks."""
        return Ranks(self.recording)

    @cached_property
    def rank_faults(self) -> tuple[RankFault, ...]:
        """Return the faults that those records show."""
        return rank_faults(self.ranks)

    def paired(self, value: Any, reference: Any) -> dict[str, Any]:
        """Return the fields of a `Place` that set this side's own value against a reference."""
        baseline, candidate = (reference, value) if self.name == "candidate" else (value, reference)
        return {"baseline": baseline, "candidate": candidate}


@dataclass
class Counts:
    """How much was compared, and what it showed. The unit is tokens, unless another is named."""

    samples: int = 0  # samples that were judged
    other_prompts: int = 0  # samples
    drawn: int = 0  # of the judged samples: the longer response of each
    compared_tokens: int = 0
    after_first_difference: int = 0
    not_reached: int = 0  # positions of the guide
    beyond_ten_floors: int = 0
    flips: int = 0
    benign_flips: int = 0
    flips_beyond_margin: int = 0
    flips_without_margin: int = 0
    flips_without_any_margin: int = 0  # not even an infinite one
    flips_for_candidate: int = 0  # those in which the learner agrees with the candidate
    length_differences: int = 0  # samples
    finish_reasons: int = 0  # samples
    experience_samples: int = 0
    rewards: int = 0  # samples


@dataclass
class Flips:
    """Every flip beyond the margin: step, sample, position, the baseline's token, the candidate's token, the margin."""

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
        """Return (step, sample) of every sample with a flip, benign ones included."""
        return np.concatenate(self.with_any) if self.with_any else np.empty((0, 2), np.int64)


@dataclass(frozen=True)
class Far:
    """Choices of one step that one of the few tokens may reverse which half precision rounds beyond the tolerance.

    `columns`: arguments of `Flips.add`, where the choices are flips.
    """

    key: DivergenceKey
    samples: np.ndarray
    place: Place
    margin: np.ndarray
    columns: tuple[np.ndarray, ...] = ()


class OtherDivisor(NamedTuple):
    """Gradients of equal weights and batches that another divisor of the loss explains.

    `side`: the run that does not divide by the mini-batch's tokens; "" where that is unknown. `what`: what the divisor
    depends on.
    """

    side: str
    text: str
    what: str = What.DIVISOR


@dataclass
class Learners:
    """Learner against learner: the steps of each run's updates, those with equal results, and where they begin to
    differ.
    """

    updates: dict[str, list[int]] = field(default_factory=dict)
    equal: list[int] = field(default_factory=list)
    parted: int | None = None  # the step after which they differ, with at most one of the reasons below
    cuts: list[Finding] = field(default_factory=list)  # settings that cut the same batch otherwise
    norms: str = ""  # how far gradients differ in the update after which such a setting makes the learners differ
    confounded: str = ""
    followed: int | None = None  # they trained on other tokens
    reordered: int | None = None  # they took the samples in another order
    scaled: OtherDivisor | None = None
    losses_differ: dict[str, int] = field(default_factory=dict)  # loss -> first step with other last digits


@dataclass
class Experience:
    """What the learners made of the same tokens, by column."""

    other_tokens: list[int] = field(default_factory=list)  # steps that were trained on other tokens
    not_identical: dict[str, int] = field(default_factory=dict)  # the first step without bit-identical values
    apart: dict[str, tuple[float, float]] = field(default_factory=dict)  # largest |Δ| within the allowed one, and that
    means: dict[str, dict[int, Clusters]] = field(default_factory=dict)  # column -> step -> sums of the differences
    untested: dict[str, str] = field(default_factory=dict)  # why no mean difference was tested


@dataclass
class Rollouts:
    """Engine against engine, in addition to the divergences."""

    no_logprobs: list[int] = field(default_factory=list)  # steps in which a token has no log-probability
    odd_unreached: dict[str, tuple[int, Any, int]] = field(default_factory=dict)  # side -> step, reported, lacking
    weights_unknown: list[int] = field(default_factory=list)  # steps of which no record shows equal weights
    prompts_unknown: list[int] = field(default_factory=list)
    given_up: dict[int, int] = field(default_factory=dict)  # step -> samples that both engines aborted
    sources: list[Source] = field(default_factory=list)
    ties: list[tuple[np.ndarray, Place]] = field(default_factory=list)  # of each step: benign flips, the first place
    far: list[Far] = field(default_factory=list)
    too_many_flips: bool = False  # too many without a margin, for engines within the tolerance of each other
    too_many_ties: bool = False


@dataclass
class Prompts:
    """Prompts that an engine saw otherwise than they were sent: kind of change -> where, and the length that was
    seen.
    """

    kinds: dict[str, list[tuple[int, int]]] = field(default_factory=dict)  # (step, sample)
    lengths: dict[str, list[int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Collisions:
    """Equal native samples of one prompt."""

    equal: int  # pairs
    expected: float
    clones: int  # samples

    def facts(self) -> dict[str, Any]:
        """Return the details for a verdict."""
        return {"equal pairs": self.equal, "expected": self.expected, "samples": self.clones}


@dataclass(frozen=True)
class Learned:
    """What live engines showed that lets recordings name other causes."""

    # (step, sample, position) of a flip -> whether both tokens read the same
    aloud: Mapping[tuple[int, int, int], bool] = field(default_factory=dict)
    past_cache: tuple[str, ...] = ()  # sides that still differ when nothing comes from a cache


@dataclass(frozen=True)
class Ending:
    """A sample of unequal lengths whose tokens agree as far as both go. Pairs are (baseline, candidate)."""

    step: int
    sample: int
    sent: int  # tokens of the prompt
    seen: tuple[int, int]  # tokens of the prompt that each engine saw
    lengths: tuple[int, int]
    finish: tuple[str, str]  # "" where it was not recorded
    shorter_last: int  # last token of the shorter response; -1 where it is empty
    longer_next: int  # next token of the longer response
    longer_last: int


class Reason(NamedTuple):
    """A sample with equal tokens and different finish reasons, (baseline, candidate). For one run alone: (its reason,
    "").
    """

    step: int
    sample: int
    length: int
    last: int  # token
    finish: tuple[str, str]


@dataclass
class Evidence:
    """Everything that was found. `gather` fills and seals it; checks, rules and attribution read it."""

    baseline: Side
    candidate: Side
    tolerance: Tolerance
    confounders: list[Confounder]
    weights: Weights
    mode: str  # coupled, greedy, native, replay
    finer: Tolerance | None = None  # where both engines compute in a finer type than the learners
    engines: Mismatch = field(default_factory=Mismatch)  # candidate against baseline
    guided: bool = False
    first: dict[DivergenceKey, Divergence] = field(default_factory=dict)
    places: dict[DivergenceKey, dict[int, Divergence]] = field(default_factory=dict)  # step -> its earliest divergence
    items: dict[DivergenceKey, list[np.ndarray]] = field(default_factory=dict)  # arrays of (step, sample)
    # What -> step -> whether each side recorded it completely. Read by `gaps`.
    recorded: dict[str, dict[int, tuple[bool, ...]]] = field(default_factory=dict)
    counts: Counts = field(default_factory=Counts)
    missing: list[str] = field(default_factory=list)
    unmatched: list[str] = field(default_factory=list)
    repeated: list[str] = field(default_factory=list)  # numbers that several samples have: they align nothing
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
    cap: float | None = None  # set by the user
    modes_unclear: list[str] = field(default_factory=list)
    seeded: bool = False  # runs of one framework with one engine and equal seeds
    train: bool = False
    rollouts: Rollouts = field(default_factory=Rollouts)
    experience: Experience = field(default_factory=Experience)
    learners: Learners = field(default_factory=Learners)
    margins_apart: tuple[int, int, int] | None = None  # step, margins that differ between the learners, of so many
    odd_columns: set[str] = field(default_factory=set)  # recorded incompletely, which differs from never recorded
    drift_tests: dict[Means, list[Tested]] = field(default_factory=dict)
    weights_in_use: dict[str, InUse] = field(default_factory=dict)  # by side, in half precision
    native: NativeResult | None = None
    lifted: LiftedResult | None = None
    learned: Learned = field(default_factory=Learned)
    sealed: bool = field(default=False, init=False, repr=False, compare=False)

    def seal(self) -> Evidence:
        """Make every field read-only once everything was gathered, with dictionaries and lists as read-only views.

        The records that stages fill (`Side`, `Rollouts`, `Learners`, ...) stay writable.
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
        """Whether one run is judged by itself. It then stands in both places."""
        return self.baseline is self.candidate

    @property
    def sides(self) -> tuple[Side, ...]:
        return (self.baseline,) if self.alone else (self.baseline, self.candidate)

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
        floors = [side.floor for side in self.sides if not self.second_runs or side.name in self.second_runs
                  or side.floor.measured]  # fmt: skip
        return max(floor.changed_mean for floor in floors) if all(floor.measured for floor in floors) else float("nan")

    def tolerated(self, kind: Kind) -> Tolerance:
        """Return what counts as equal in this kind of comparison."""
        if kind.stage is Stage.NATIVE and self.tolerance.rounding.native is not None:
            return replace(self.tolerance, share=self.tolerance.rounding.native)
        return self.of_engines if kind is Kind.LOGPROB else self.tolerance

    def beyond(self, key: DivergenceKey) -> int:
        """Return how many tokens of a comparison lie beyond the tolerance, tolerated outliers included."""
        return self.tails[key].beyond if key in self.tails else 0

    def note_recorded(self, what: str, step: int, *sides: bool) -> None:
        self.recorded.setdefault(what, {})[step] = sides

    def diverges(self, key: DivergenceKey, samples: Any, place: Place, *, phase: str | None = None) -> None:
        """Note divergences of one kind in one step; `place` is the earliest. `samples` is empty for kinds not counted
        by sample.
        """
        divergence = Divergence(*key, place, phase or place.phase)
        if key not in self.first or divergence.order < self.first[key].order:
            self.first[key] = divergence
        earliest_by_step = self.places.setdefault(key, {})
        if place.step not in earliest_by_step or divergence.order < earliest_by_step[place.step].order:
            earliest_by_step[place.step] = divergence
        samples = np.asarray(samples, np.int64).reshape(-1)
        self.items.setdefault(key, []).append(items_of(place.step, samples if len(samples) else np.array([-1])))

    def differs(
        self, key: DivergenceKey, weighed: Weighed, samples: Any, place: Place, *, phase: str | None = None
    ) -> bool:
        """Note one step's differences beyond the tolerance. Returns whether they are more than outliers.

        A few outliers in a step are kept aside: `settle` counts them over the whole run.
        """
        if weighed.diverges:
            self.diverges(key, samples, place, phase=phase)
        else:
            self.tail(key).kept.append((samples, place))
        return weighed.diverges

    def tail(self, key: DivergenceKey) -> Tail:
        return self.tails.setdefault(key, Tail())

    def extreme(self, kind: Kind) -> float:
        """Return the difference, in nats, that no single token may exceed in this kind of comparison."""
        tolerance = self.tolerated(kind)
        return tolerance.extreme if kind.stage is Stage.NATIVE else tolerance.extreme_drawn

    def weigh(
        self, key: DivergenceKey, grid: Grid, compared: np.ndarray, size: np.ndarray, items: np.ndarray
    ) -> Weighed:
        """Hold one step's |differences| of log-probabilities against the tolerance, and add them to the run's tail.

        `items`: (step, sample) of each row of the grid.
        """
        tolerance = self.tolerated(key.kind)
        spared = tolerance.spared(int(np.count_nonzero(compared)))
        bounds = Bounds(tolerance.value, self.extreme(key.kind), tolerance.share, spared, tolerance.most)
        weighed = Weighed.of(grid, compared, size, bounds)
        self.tail(key).add(weighed, items)
        return weighed

    def settle(self) -> None:
        """Turn outliers that no single step counted as divergences into divergences, where all together are too
        many.
        """
        for key, tail in self.tails.items():
            if tail.too_many:
                for samples, place in tail.kept:
                    self.diverges(key, samples, place)
            tail.kept = []

    def found(self, key: DivergenceKey) -> np.ndarray:
        """Return (step, sample) of every divergence of a kind."""
        parts = self.items.get(key)
        return np.concatenate(parts) if parts else np.empty((0, 2), np.int64)

    def earliest(self, *keys: DivergenceKey) -> Place | None:
        """Return where the first divergence among these kinds begins."""
        divergences = [self.first[key] for key in keys if key in self.first]
        return min(divergences, key=lambda divergence: divergence.order).place if divergences else None

    def confounded(self, *scopes: str, step: int | None = None) -> Confounder | None:
        """Return the first confounder of one of these scopes that acts in `step` or before."""
        acting = [
            confounder
            for confounder in self.confounders
            if confounder.scope in scopes and (step is None or confounder.step <= step)
        ]
        return min(acting, key=lambda confounder: confounder.step) if acting else None

    def unpaired(self, match: Match, where: str, only_a: str, only_b: str) -> None:
        """Note samples without a partner, which are missing evidence."""
        for what, samples in ((only_a, match.only_a), (only_b, match.only_b)):
            if len(samples):
                self.unmatched.append(
                    f"{where}: {what}: {counted(len(samples), 'sample')}, the first is {int(samples[0])}"
                )
        if len(match.repeated):
            self.repeated.append(f"{where}: sample {int(match.repeated[0])} was recorded more than once")


def items_of(step: int, samples: np.ndarray) -> np.ndarray:
    """Return (step, sample) of each of these samples of a step."""
    return np.stack([np.full(len(samples), step), samples], axis=1)


def version_of(table: Table) -> int:
    """Return the weight version that a frame was drawn with; -1 where it was not recorded."""
    return -1 if table.header.weight_version is None else table.header.weight_version
