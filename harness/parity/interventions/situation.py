"""The state of the search on one side: what still differs, what its engine was given, which causes were named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np

from harness.parity.causes.family import Seen
from harness.parity.facts.divergence import Kind
from harness.parity.facts.evidence import Evidence
from harness.parity.interventions.bench import Bench
from harness.parity.subjects.log_probabilities.observed_outliers import Share
from harness.parity.subjects.precision.observed_floor import Tolerance
from harness.parity.subjects.precision.observed_rounding import largest_of, share_of
from harness.parity.subjects.sampling.observed import engine_given, engine_infos
from harness.recordings.records.engine_info import SamplingParameters, SamplingRequest
from reports.model import RESIDUE, CauseKey, Proof
from scenarios.bench.case import NUMBERS, Alteration, CaseSample, HeldReport, Symptoms

T = TypeVar("T")
ROOMY = ("max_model_len", "kv_cache_tokens")  # more of these than asked for is a reserve, which changes nothing
LEAST = 3  # fewer differences may vanish by chance; where a recording agrees, one suffices


@dataclass(frozen=True)
class Named:
    """A cause that an intervention proved on live engines."""

    cause: CauseKey
    party: str
    side: str
    summary: str
    proof: Proof
    details: dict[str, Any] = field(default_factory=dict)
    seen: tuple[Seen, ...] = ()  # what excludes its rivals


@dataclass(frozen=True)
class Tried:
    """One intervention that was made. `cause`: the cause that it would name. `removed`: whether it removed
    something.
    """

    intervention: str
    cause: CauseKey
    side: str
    before: int
    after: int
    seconds: float
    removed: bool


@dataclass
class Situation:
    """One side whose engine differs from the reference. `symptoms`: what still differs under `alteration`."""

    bench: Bench
    evidence: Evidence
    side: str
    symptoms: Symptoms
    clock: Callable[[], float]
    deadline: float
    samples: list[CaseSample]
    alteration: Alteration = field(default_factory=Alteration)
    named: list[Named] = field(default_factory=list)
    tried: list[Tried] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    last_put_back: list[str] = field(default_factory=list)
    recorded: frozenset[CauseKey] = frozenset()  # the causes that recordings name
    held: HeldReport | None = None  # what its engine holds, once it was read back
    past_cache: bool = False  # whether the engine is read without its prefix cache
    # For each alteration: how many tokens rounding may take far, and how far any, in nats; see `settled`.
    rounding: dict[Alteration, tuple[Share, float]] = field(default_factory=dict)

    @property
    def changed(self) -> dict[str, tuple[Any, Any]]:
        """Return name -> (asked, given) for the parameters that this side's engine was not started with as asked."""
        infos = engine_infos(self.evidence.side(self.side), self.evidence.mode)
        if not infos or not infos[0].mapped_by_others:
            return {}
        requested, changed = infos[0].requested, {}
        for name, value in engine_given(infos[0]).items():
            if name not in requested or value == requested[name]:
                continue
            if name not in ROOMY or not _more(value, requested[name]):  # more room than asked for changes nothing
                changed[name] = (requested[name], value)
        return changed

    @property
    def from_start(self) -> bool:
        """Whether this side differed in its first step, when its engine was freshly started."""
        e = self.evidence
        kinds = (Kind.ENGINE.of(self.side), Kind.CHOICE.of(self.side))
        first = min(e.steps, default=-1)
        return any((e.found(kind)[:, 0] == first).any() for kind in kinds)

    @property
    def ended_at(self) -> list[int]:
        """Return the total lengths, prompt included, at which the engine ended samples before the reference did;
        longest first.
        """
        prompts = {**{sample.number: sample.prompt for sample in self.samples}, **dict(self.alteration.prompts)}
        return sorted({len(prompts[number]) + length for number, length in self._ended_early}, reverse=True)

    @property
    def ended_after(self) -> list[int]:
        """Return the response lengths of the same samples, longest first."""
        return sorted({length for _, length in self._ended_early}, reverse=True)

    @property
    def _ended_early(self) -> list[tuple[int, int]]:
        """Return (sample, response length) of the engine's responses that are shorter than the reference's."""
        places = self.symptoms.places.get("lengths", [])
        return [(number, length) for number, _, reference_length, length in places if length < reference_length]

    @property
    def run_sampling(self) -> SamplingParameters:
        """Return the canonical sampling parameters for both sides, from the baseline's scenario."""
        return self.evidence.baseline.recording.records.settings.sampling

    @property
    def given_sampling(self) -> SamplingParameters:
        """Return the canonical sampling parameters that this side's engine was given, where they were recorded."""
        return self.request.received or self.request.requested

    @property
    def request(self) -> SamplingRequest:
        """Return the sampling request of this side; an empty one where none was recorded."""
        return self.evidence.side(self.side).recording.records.sampling_in(self.evidence.mode)

    @property
    def remaining(self) -> Symptoms:
        """Return what differs, without what rounding explains."""
        return self.settled(self.symptoms, self.alteration)

    @property
    def answers_differ(self) -> bool:
        """Whether what comes back is not what was drawn: choices or lengths then differ, and no score."""
        return not self.remaining.of("scores") and self.remaining.of("tokens", "lengths") > 0

    def settled(self, symptoms: Symptoms, alteration: Alteration) -> Symptoms:
        """Return the symptoms under an alteration without what rounding explains.

        The reference's own rounding at the tokens of the case counts where it is larger than the run's. Unlikely tokens
        and prompts round further, and the case consists of the samples in which most differs.
        """
        tolerance = self.evidence.tolerance
        remaining = settled(symptoms, tolerance)
        if not (tolerance.half and remaining.of(*NUMBERS)):
            return remaining
        if alteration not in self.rounding:
            size = np.array(self.bench.rounding(self.side, alteration))
            share = share_of(size, tolerance.value) if len(size) else tolerance.share
            self.rounding[alteration] = share, tolerance.farthest(largest_of(size, tolerance.cap))
        share, farthest = self.rounding[alteration]
        share = max(share, tolerance.share, key=lambda tail_share: tail_share.most)
        return settled(symptoms, replace(tolerance, share=share), max(farthest, tolerance.extreme))

    @property
    def over(self) -> bool:
        return self.clock() > self.deadline


def _more(given_value: Any, asked_value: Any) -> bool:
    return isinstance(given_value, int | float) and isinstance(asked_value, int | float) and given_value > asked_value


def improves(before: Symptoms, after: Symptoms, *, recorded: bool = False) -> bool:
    """Whether an intervention removed the difference, or a distinct part of it.

    The total must fall by at least LEAST (by one where a recording says the same), and either a kind of difference
    vanishes down to RESIDUE or some samples no longer differ. Differences that are no longer compared do not count: an
    intervention that only hid them removed nothing. As a control, no healthy sample and no kind may get worse.
    """
    # Fewer differences are left, and not because they are no longer compared.
    gained, hidden = before.total - after.total, _hidden(before, after)
    if gained - hidden < (1 if recorded else LEAST) or gained < 2 * hidden:
        return False
    # Nothing got worse: no kind of difference, and no sample that was healthy.
    slack = RESIDUE * before.total
    kinds = {*before.counts, *after.counts}
    if any(after.of(kind) > before.of(kind) + slack for kind in kinds):
        return False
    if any(after.healthy.get(kind, 0) > before.healthy.get(kind, 0) for kind in kinds):
        return False
    # What went is a whole: a kind, or samples. A bit less of everything may be chance.
    vanished = any(count and after.of(kind) <= RESIDUE * count for kind, count in before.counts.items())
    cleaned = set(before.by_sample) - set(after.by_sample)
    return vanished or (bool(cleaned) and set(after.by_sample) <= set(before.by_sample))


def _hidden(before: Symptoms, after: Symptoms) -> int:
    """Return how many of the vanished differences may only be hidden, because fewer of their kind are compared.

    That happens after a flip, where a sample is cut, or where the reference ends early.
    """
    hidden = 0
    for kind, count in before.counts.items():
        vanished_of_kind = max(count - after.of(kind), 0)
        compared_no_more = max(before.compared.get(kind, 0) - after.compared.get(kind, 0), 0)
        hidden += min(vanished_of_kind, compared_no_more)
    return hidden


def settled(symptoms: Symptoms, tolerance: Tolerance, farthest: float | None = None) -> Symptoms:
    """Return the symptoms without what two engines of equal weights may show.

    That is a few log-probabilities beyond the tolerance, none of them beyond `farthest` nats (default: the tolerance's
    `extreme`). Recordings are allowed the same number.
    """
    limit = tolerance.extreme if farthest is None else farthest
    rounded = [kind for kind in NUMBERS if _rounded(symptoms, kind, tolerance, limit)]
    by_sample = dict(symptoms.by_sample)
    for kind in rounded:
        for sample, _ in symptoms.sizes[kind]:
            by_sample[sample] -= 1
    return replace(
        symptoms,
        counts=_without(symptoms.counts, rounded),
        healthy=_without(symptoms.healthy, rounded),
        places=_without(symptoms.places, rounded),
        by_sample={sample: count for sample, count in by_sample.items() if count},
    )


def _rounded(symptoms: Symptoms, kind: str, tolerance: Tolerance, farthest: float) -> bool:
    """Whether rounding explains every difference of the kind."""
    near = sum(size <= farthest for _, size in symptoms.sizes.get(kind, ()))
    return 0 < symptoms.of(kind) == near <= tolerance.share.allowed(symptoms.compared.get(kind, 0))


def _without(kinds: dict[str, T], dropped_kinds: list[str]) -> dict[str, T]:
    return {kind: value for kind, value in kinds.items() if kind not in dropped_kinds}


def vanished(before: Symptoms, after: Symptoms) -> bool:
    """Whether no more than the residue is left."""
    return after.total <= RESIDUE * before.total
