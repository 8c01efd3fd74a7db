"""The evidence of a comparison, or of one run alone: every fact that a check may use, and nothing that can be written.

`EvidenceBuilder` collects it in one pass over the steps. A divergence is kept in three ways: how many (`counts`,
`series`), where (`items`: step and sample, for causes to explain), and the earliest (`first`: everything that a report
says about a first divergence).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from harness.parity.facts.comparison import Comparison, RecordedSide
from harness.parity.facts.divergence import Divergence, DivergenceKey, Kind
from harness.parity.facts.tally import Tally
from harness.parity.subjects.engines.observed_lifecycle import Lifecycle
from harness.parity.subjects.engines.observed_memory import Held, recorded
from harness.parity.subjects.learner.observed_learner_faults import AppliedLosses, Returns
from harness.parity.subjects.learner.observed_learners import Experience, Learners
from harness.parity.subjects.log_probabilities.observed_metrics import Mismatch
from harness.parity.subjects.log_probabilities.observed_results import LogProbabilities
from harness.parity.subjects.native_sampler.observed import Collisions, NativeResult
from harness.parity.subjects.order.observed import Exchange, Source
from harness.parity.subjects.precision.observed_lifted import LiftedResult
from harness.parity.subjects.prompts.observed_changes import Prompts
from harness.parity.subjects.ranks.observed_faults import RankFault
from harness.parity.subjects.recording.observed_completeness import Completeness
from harness.parity.subjects.recording.observed_witnesses import Witnesses
from harness.parity.subjects.sampling.observed_flip_table import Flips
from harness.parity.subjects.sampling.observed_margin_counts import Margins
from harness.parity.subjects.stop_conditions.observed_endings import StopConditions, Stops
from harness.parity.subjects.weights.observed_lag import InUse
from harness.parity.subjects.weights.observed_sync_record import SyncRecord
from reports.model import Place


@dataclass(frozen=True)
class SideCounts(Tally):
    """How much one side recorded, and how much of it was compared within the side. The unit is tokens, unless another
    is named.
    """

    samples: int = 0  # samples
    tokens: int = 0
    unknown_ids: int = 0  # of them, ids that the tokenizer does not have
    seen_samples: int = 0  # samples whose engine reported the prompt that it saw
    cached_tokens: int = 0
    trained_tokens: int = 0
    choices: int = 0  # choices that were compared with the learner's
    choices_against_learner: int = 0
    reasons_held: int = 0  # samples of an audit whose finish reason was compared with their last token


@dataclass(frozen=True)
class Counts(Tally):
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
    reasons_not_recorded: int = 0  # samples
    reasons_parted: int = 0  # samples whose tokens or lengths part, so that their ends cannot be compared
    experience_samples: int = 0
    rewards: int = 0  # samples


@dataclass(frozen=True, eq=False)
class Side(RecordedSide):
    """One run of the comparison, with what its steps show of it."""

    counts: SideCounts
    to_learner: Mismatch  # engine against learner
    stops: Stops
    versions: Mapping[int | None, tuple[int, ...]]  # weight version -> steps drawn with it
    no_experience: tuple[int, ...]  # steps that could not be compared with the learner
    uncompared: tuple[int, str] | None  # the first step of which a framework says why
    unmatched: tuple[int, Mapping[str, int]] | None  # first step with rows trained on that have no sample: why -> count
    prompts: Prompts  # prompts that the engine did not see as they were sent
    native_prompts: Prompts  # the same, of the native stage
    margins: Margins
    sync: SyncRecord
    exchanged: Mapping[int, Exchange]  # step -> samples trained on with others' responses
    collisions: Collisions | None  # among the native samples
    witnesses: Witnesses  # its contradictions step by step
    lifecycle: Lifecycle | None  # the sleep of its engines; None where they should stay awake and did
    rank_faults: tuple[RankFault, ...]
    returns: Returns  # of its learner, held against its rewards
    applied_losses: AppliedLosses  # of its learner, held against its experience

    @cached_property
    def memory(self) -> tuple[Held, ...]:
        """Return the memory of each process, step by step."""
        return tuple(recorded(self.recording))


@dataclass(frozen=True)
class Learned:
    """What live engines showed that lets recordings name other causes."""

    # (step, sample, position) of a flip -> whether both tokens read the same
    aloud: Mapping[tuple[int, int, int], bool] = field(default_factory=dict)
    past_cache: tuple[str, ...] = ()  # sides that still differ when nothing comes from a cache


@dataclass(frozen=True, eq=False, kw_only=True)
class Evidence(Comparison[Side]):
    """Everything that was found. Checks, rules, interventions and attribution read it."""

    steps: tuple[int, ...]  # steps that both runs rolled out
    unjudged_steps: Mapping[int, str]  # step -> why its rollouts were not compared
    guided: bool
    counts: Counts
    series: Mapping[str, tuple[float, ...]]
    first: Mapping[DivergenceKey, Divergence]
    places: Mapping[DivergenceKey, Mapping[int, Divergence]]  # step -> its earliest divergence
    items: Mapping[DivergenceKey, np.ndarray]  # (step, sample) of each divergence
    completeness: Completeness
    between_engines: Mismatch  # log-probabilities of the candidate against the baseline's
    log_probabilities: LogProbabilities
    flips: Flips
    response_sources: tuple[Source, ...]  # whose responses the candidate's differing samples have
    stop_conditions: StopConditions
    experience: Experience
    learners: Learners
    weights_in_use: Mapping[str, InUse]  # by side, in half precision
    native: NativeResult | None
    lifted: LiftedResult | None
    learned: Learned = Learned()

    @property
    def judged_steps(self) -> list[int]:
        """Return the steps whose rollouts were compared."""
        return [step for step in self.steps if step not in self.unjudged_steps]

    @property
    def compared_native(self) -> NativeResult | None:
        """Return the native stage where it was compared."""
        return None if self.native is None or self.native.skipped else self.native

    def beyond(self, key: DivergenceKey) -> int:
        """Return how many tokens of a comparison lie beyond the tolerance, tolerated outliers included."""
        tails = self.log_probabilities.tails
        return tails[key].beyond if key in tails else 0

    def found(self, key: DivergenceKey) -> np.ndarray:
        """Return (step, sample) of every divergence of a kind."""
        return self.items.get(key, np.empty((0, 2), np.int64))

    def diverged(self, *kinds: Kind) -> tuple[DivergenceKey, ...]:
        """Return the keys of the divergences of these kinds that are of a side, side by side."""
        keys = (kind.of(side.name) for side in self.sides for kind in kinds)
        return tuple(key for key in keys if key in self.first)

    def first_place(self, *keys: DivergenceKey) -> Place:
        """Return where the first of these divergences begins. Takes at least one, of those that there are."""
        return min((self.first[key] for key in keys), key=lambda divergence: divergence.order).place

    def earliest(self, *keys: DivergenceKey) -> Place | None:
        """Return where the first divergence among these kinds begins; None where there is none of them."""
        diverged = [key for key in keys if key in self.first]
        return self.first_place(*diverged) if diverged else None
