"""The builder of `Evidence`: the stages that gather write into it, and `build` returns what they found, read-only.

Nothing that decides takes a builder. Its modules are the stages: `harness.parity.gather`, `compare`, `own_faults`,
`lifted`, and the `observed` files of the subjects.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from harness.parity.facts.align import Grid, Match
from harness.parity.facts.comparison import Comparison, RecordedSide
from harness.parity.facts.divergence import Divergence, DivergenceKey
from harness.parity.facts.evidence import Counts, Evidence, Side, SideCounts
from harness.parity.facts.plain import read_only
from harness.parity.subjects.engines.observed_lifecycle import Lifecycle
from harness.parity.subjects.learner.observed_learner_faults import AppliedLosses, Returns
from harness.parity.subjects.learner.observed_learners import Experience, Learners
from harness.parity.subjects.log_probabilities.observed_clusters import Clusters
from harness.parity.subjects.log_probabilities.observed_metrics import MismatchSums
from harness.parity.subjects.log_probabilities.observed_outliers import Bounds, TailSteps, Weighed
from harness.parity.subjects.log_probabilities.observed_readings import Readings
from harness.parity.subjects.log_probabilities.observed_results import LogProbabilities
from harness.parity.subjects.log_probabilities.observed_separations import Sums, separations
from harness.parity.subjects.log_probabilities.observed_systematic import Drift, Means, Tested
from harness.parity.subjects.native_sampler.observed import Collisions, NativeResult
from harness.parity.subjects.order.observed import Exchange, Source
from harness.parity.subjects.precision.observed_floor import EngineFloor
from harness.parity.subjects.precision.observed_lifted import LiftedResult
from harness.parity.subjects.prompts.observed_boundaries import TokenBoundaries
from harness.parity.subjects.prompts.observed_changes import ChangedPrompt, Prompts
from harness.parity.subjects.ranks.observed import Ranks
from harness.parity.subjects.ranks.observed_faults import RankFault
from harness.parity.subjects.recording.observed_completeness import Completeness
from harness.parity.subjects.recording.observed_confounders import Confounder
from harness.parity.subjects.recording.observed_witnesses import Witnesses
from harness.parity.subjects.sampling.observed_flip_table import FarChoices, FlipRows, Flips
from harness.parity.subjects.sampling.observed_margin_counts import Margins
from harness.parity.subjects.stop_conditions.observed_endings import Ending, Reason, StopConditions, Stops
from harness.parity.subjects.weights.observed_lag import InUse, Updates
from harness.parity.subjects.weights.observed_sync_record import SyncRecord
from harness.recordings.store import Recording
from harness.recordings.tables import Table
from reports.model import Place, place_of_step
from reports.text import counted


class SideBuilder(RecordedSide):
    """Collects what the steps show of one side. `Side` describes the fields."""

    def __init__(self, name: str, recording: Recording, floor: EngineFloor) -> None:
        super().__init__(name, recording, floor, Ranks(recording), TokenBoundaries(recording))
        self.counts = SideCounts()
        self.to_learner = MismatchSums()
        self.stops: dict[int, int] = {}
        self.inner: np.ndarray = np.zeros(0, np.int64)
        self.reasons: list[Reason] = []
        self.versions: dict[int | None, list[int]] = {}
        self.no_experience: list[int] = []
        self.uncompared: tuple[int, str] | None = None
        self.unmatched: tuple[int, Mapping[str, int]] | None = None
        self.prompts: list[ChangedPrompt] = []
        self.native_prompts: list[ChangedPrompt] = []
        self.margins = Margins()
        self.sync = SyncRecord()
        self.exchanged: dict[int, Exchange] = {}
        self.collisions: Collisions | None = None
        self.witnesses = Witnesses()
        self.lifecycle: Lifecycle | None = None
        self.rank_faults: tuple[RankFault, ...] = ()
        self.returns = Returns()
        self.applied_losses = AppliedLosses()

    def build(self) -> Side:
        return Side(
            name=self.name,
            recording=self.recording,
            floor=self.floor,
            ranks=self.ranks,
            boundaries=self.boundaries,
            counts=self.counts,
            to_learner=self.to_learner.mismatch(),
            stops=Stops(read_only(self.stops), self.inner, tuple(self.reasons)),
            versions=read_only({version: tuple(steps) for version, steps in self.versions.items()}),
            no_experience=tuple(self.no_experience),
            uncompared=self.uncompared,
            unmatched=None if self.unmatched is None else (self.unmatched[0], read_only(self.unmatched[1])),
            prompts=Prompts.of(self.prompts),
            native_prompts=Prompts.of(self.native_prompts),
            margins=self.margins,
            sync=self.sync,
            exchanged=read_only(self.exchanged),
            collisions=self.collisions,
            witnesses=self.witnesses,
            lifecycle=self.lifecycle,
            rank_faults=self.rank_faults,
            returns=self.returns,
            applied_losses=self.applied_losses,
        )


class EvidenceBuilder(Comparison[SideBuilder]):
    """Collects the evidence while the steps are compared. `Evidence` and the records in it describe the fields."""

    confounders: list[Confounder]

    def __init__(self, comparison: Comparison[SideBuilder], learners: Learners) -> None:
        super().__init__(**{**vars(comparison), "confounders": [*comparison.confounders]})
        self.steps: list[int] = []
        self.unjudged_steps: dict[int, str] = {}
        self.guided = False
        self.counts = Counts()
        self.series: dict[str, list[float]] = {}
        self.first: dict[DivergenceKey, Divergence] = {}
        self.places: dict[DivergenceKey, dict[int, Divergence]] = {}
        self.items: dict[DivergenceKey, list[np.ndarray]] = {}  # arrays of (step, sample)
        # completeness
        self.missing: list[str] = []
        self.unmatched: list[str] = []
        self.repeated: list[str] = []
        self.recorded: dict[str, dict[int, tuple[bool, ...]]] = {}
        self.odd_columns: set[str] = set()
        self.odd_unreached: dict[str, tuple[int, Any, int]] = {}
        self.weights_unknown: list[int] = []
        self.prompts_unknown: list[int] = []
        # log-probabilities
        self.between_engines = MismatchSums()
        self.no_logprobs: list[int] = []
        self.tails: dict[DivergenceKey, TailSteps] = {}
        self.readings: dict[DivergenceKey, list[Mapping[str, np.ndarray]]] = {}  # of each step
        self.separations: dict[DivergenceKey, Sums] = {}
        self.drifts: dict[Means, Drift] = {}
        self.drift_tests: dict[Means, list[Tested]] = {}
        # rollouts and flips
        self.sources: list[Source] = []
        self.flips: list[FlipRows] = []  # of each step
        self.flipped_samples: list[np.ndarray] = []
        self.ties: list[tuple[np.ndarray, Place]] = []  # of each step: benign flips, the first place
        self.far: list[FarChoices] = []
        self.too_many_flips = False
        self.too_many_ties = False
        self.margins_apart: tuple[int, int, int] | None = None
        # stop conditions
        self.endings: list[Ending] = []
        self.reasons: list[Reason] = []
        self.given_up: dict[int, int] = {}
        # learners
        self.learners = learners
        self.other_tokens: list[int] = []
        self.not_identical: dict[str, int] = {}
        self.apart: dict[str, tuple[float, float]] = {}
        self.differing: dict[str, list[np.ndarray]] = {}  # column -> arrays of (step, sample)
        self.frozen_means: dict[str, dict[int, Clusters]] = {}  # column -> step -> sums of the differences
        self.untested_means: dict[str, str] = {}
        # weights
        self.updates: dict[str, Updates] = {}  # side -> its engine against two weight versions
        self.weights_in_use: dict[str, InUse] = {}
        # stages
        self.native: NativeResult | None = None
        self.lifted: LiftedResult | None = None

    def note_recorded(self, what: str, step: int, *sides: bool) -> None:
        self.recorded.setdefault(what, {})[step] = sides

    def note_divergence(self, key: DivergenceKey, samples: Any, place: Place, *, phase: str | None = None) -> None:
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

    def note_native(self, key: DivergenceKey, *, field: str, context: str, **values: Any) -> None:
        """Note a divergence of a whole native stage, which has no step and no sample. `values`: fields of its place."""
        place = place_of_step(step=-1, phase="native", field=field, context=context, **values)
        self.note_divergence(key, [], place)

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
        self._tail(key).add(weighed, items)
        return weighed

    def note_differences(
        self, key: DivergenceKey, weighed: Weighed, samples: Any, place: Place, *, phase: str | None = None
    ) -> bool:
        """Note one step's differences beyond the tolerance. Returns whether they are more than outliers.

        A few outliers in a step are kept aside: `note_outliers` counts them over the whole run.
        """
        if weighed.diverges:
            self.note_divergence(key, samples, place, phase=phase)
        else:
            self._tail(key).kept.append((samples, place))
        return weighed.diverges

    def note_outliers(self) -> None:
        """Turn outliers that no single step counted as divergences into divergences, where all together are too
        many.
        """
        for key, tail in self.tails.items():
            if tail.too_many:
                for samples, place in tail.kept:
                    self.note_divergence(key, samples, place)

    def _tail(self, key: DivergenceKey) -> TailSteps:
        return self.tails.setdefault(key, TailSteps())

    def found(self, key: DivergenceKey) -> np.ndarray:
        """Return (step, sample) of every divergence of a kind so far."""
        parts = self.items.get(key)
        return np.concatenate(parts) if parts else np.empty((0, 2), np.int64)

    def unpaired(self, match: Match, where: str, only_a: str, only_b: str) -> None:
        """Note samples without a partner, which are missing evidence."""
        for what, samples in ((only_a, match.only_a), (only_b, match.only_b)):
            if len(samples):
                self.unmatched.append(
                    f"{where}: {what}: {counted(len(samples), 'sample')}, the first is {int(samples[0])}"
                )
        if len(match.repeated):
            self.repeated.append(f"{where}: sample {int(match.repeated[0])} was recorded more than once")

    def build(self) -> Evidence:
        """Return everything that was found, read-only."""
        baseline = self.baseline.build()
        return Evidence(
            baseline=baseline,
            candidate=baseline if self.alone else self.candidate.build(),
            tolerance=self.tolerance,
            confounders=tuple(self.confounders),
            weights=self.weights,
            mode=self.mode,
            finer=self.finer,
            cap=self.cap,
            seeded=self.seeded,
            train=self.train,
            second_runs=read_only(self.second_runs),
            modes_unclear=self.modes_unclear,
            steps=tuple(self.steps),
            unjudged_steps=read_only(self.unjudged_steps),
            guided=self.guided,
            counts=self.counts,
            series=read_only({name: tuple(values) for name, values in self.series.items()}),
            first=read_only(self.first),
            places=read_only({key: read_only(by_step) for key, by_step in self.places.items()}),
            items=read_only({key: self.found(key) for key in self.items}),
            completeness=self._completeness(),
            between_engines=self.between_engines.mismatch(),
            log_probabilities=self._log_probabilities(),
            flips=self._flips(),
            response_sources=tuple(self.sources),
            stop_conditions=StopConditions(tuple(self.endings), tuple(self.reasons), read_only(self.given_up)),
            experience=self._experience(),
            learners=self.learners,
            weights_in_use=read_only(self.weights_in_use),
            native=self.native,
            lifted=self.lifted,
        )

    def _completeness(self) -> Completeness:
        return Completeness(
            missing=tuple(self.missing),
            unmatched=tuple(self.unmatched),
            repeated=tuple(self.repeated),
            by_step=read_only({what: read_only(steps) for what, steps in self.recorded.items()}),
            odd_columns=frozenset(self.odd_columns),
            odd_unreached=read_only(self.odd_unreached),
            weights_unknown=tuple(self.weights_unknown),
            prompts_unknown=tuple(self.prompts_unknown),
        )

    def _log_probabilities(self) -> LogProbabilities:
        return LogProbabilities(
            incomplete=tuple(self.no_logprobs),
            tails=read_only({key: steps.tail() for key, steps in self.tails.items()}),
            readings=read_only({key: Readings.joined(steps) for key, steps in self.readings.items()}),
            separations=read_only({key: separations(sums) for key, sums in self.separations.items()}),
            drift_tests=read_only({means: tuple(tests) for means, tests in self.drift_tests.items()}),
        )

    def _flips(self) -> Flips:
        return Flips.joined(
            self.flips,
            self.flipped_samples,
            too_many=self.too_many_flips,
            too_many_ties=self.too_many_ties,
            margins_apart=self.margins_apart,
        )

    def _experience(self) -> Experience:
        return Experience(
            other_tokens=tuple(self.other_tokens),
            not_identical=read_only(self.not_identical),
            apart=read_only(self.apart),
            differing=read_only({name: np.concatenate(items) for name, items in self.differing.items()}),
            untested=read_only(self.untested_means),
        )


def items_of(step: int, samples: np.ndarray) -> np.ndarray:
    """Return (step, sample) of each of these samples of a step."""
    return np.stack([np.full(len(samples), step), samples], axis=1)


def version_of(table: Table) -> int:
    """Return the weight version that a frame was drawn with; -1 where it was not recorded."""
    return -1 if table.header.weight_version is None else table.header.weight_version
