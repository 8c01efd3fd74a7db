"""The first line of a verdict and its evidence: one fact in a line that is short enough, and what it rests on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from harness.parity.causes.unexplained import UNEXPLAINED
from harness.parity.checks.registry import Outcome, coupled
from harness.parity.facts.divergence import DivergenceKey
from harness.parity.facts.evidence import Evidence
from harness.parity.facts.separated import separated
from harness.parity.lifted import lifted_sentences
from harness.parity.subjects.native_sampler.observed import EQUAL
from harness.parity.subjects.native_sampler.observed_stage import samplers_sentences
from harness.parity.subjects.recording.observed_resumed import not_shared
from harness.parity.subjects.sampling.observed_modes import REPLAY
from probes.format import SIDES
from reports.headline import headline
from reports.model import Cause, Check
from reports.sections.parity import exceeded
from reports.text import agreeing, counted, figure, part_of

NOTHING = "nothing recorded explains what differs"


@dataclass(frozen=True)
class Answer:
    """The `reason` and the `evidence` of a verdict."""

    reason: str
    evidence: list[str] = field(default_factory=list)

    @staticmethod
    def of(verdict: str, sentence: str, otherwise: str, evidence: Iterable[str] = ()) -> Answer:
        """Return the sentence as reason where it fits a first line, else `otherwise`, with the sentence as evidence."""
        reason, long = headline(verdict, sentence, otherwise)
        return Answer(reason, [*long, *evidence])


@dataclass(frozen=True)
class Doubts:
    """Reasons why it is unknown what a recording shows, one sentence each.

    `failed`: a job or a call failed. `unknown`: something was not recorded. `parted`: a run does not repeat itself.
    `contradictions`: a recording contradicts itself.
    """

    failed: list[str]
    unknown: list[str] = field(default_factory=list)
    parted: list[str] = field(default_factory=list)
    contradictions: list[str] = field(default_factory=list)

    @property
    def sentences(self) -> list[str]:
        return [*self.failed, *self.unknown, *self.contradictions, *self.parted]

    def answer(self) -> Answer | None:
        """Return the answer for the first doubt; None without one."""
        for sentences, otherwise in (
            (self.failed, "a job, or a call of an engine, failed"),
            (self.unknown, "a recording leaves out what the verdict rests on"),
            (self.parted, "run again, the job differs from itself"),
            (self.contradictions, "a recording contradicts itself"),
        ):
            if sentences:
                return Answer.of("INCONCLUSIVE", sentences[0], otherwise)
        return None


def unjudgeable(verdict: str, sentence: str) -> Answer:
    """Return the answer for recordings in which nothing can be compared."""
    return Answer.of(verdict, sentence, "the recordings cannot be judged")


def cut_short(why: str) -> Answer:
    """Return the answer for a run that did not end."""
    return Answer.of("INCONCLUSIVE", f"cut short: {why}", "a run was cut short")


def untested(e: Evidence, check: Check) -> Answer:
    """Return the answer for an untested check without which nothing passes, behind what was compared."""
    state = "was not tested" if check.state == "not tested" else "is undecided"
    same_samples = coupled(e) or e.native is None
    tokens_compared = e.counts.compared_tokens and same_samples and not e.alone and e.mode != REPLAY
    before = f"{_tokens_equal(e)}, but " if tokens_compared else ""
    return Answer(f"{before}{check.name} {state}", [check.evidence])


def _tokens_equal(e: Evidence) -> str:
    compared = e.counts.compared_tokens
    return f"{part_of(compared - e.counts.flips, compared, 'token')} equal"


def confounded(e: Evidence) -> Answer:
    """Return the answer for runs that differ in what must be equal."""
    first, remaining_count = e.confounders[0].finding, len(e.confounders) - 1
    more = [f"{counted(remaining_count, 'confounder')} more, listed below"] if remaining_count else []
    return Answer.of("CONFOUNDED", first.summary, f"the runs differ in {first.name}", more)


def divergent(
    e: Evidence,
    kinds: list[DivergenceKey],
    causes: list[Cause],
    confirmed: Sequence[Outcome] = (),
    verdict: str = "DIVERGENT",
) -> Answer:
    """Return the answer for a difference: its first cause, then where it begins and what else there is."""
    named = [cause for cause in causes if not UNEXPLAINED.has(cause.key)]
    evidence = [_where(e, kinds), *separated(e)]
    if not named:
        evidence += [f"{outcome.check.name}: {outcome.check.evidence}" for outcome in confirmed[:1]]
        if not causes:
            checks = ", ".join(outcome.check.name for outcome in confirmed)
            return Answer.of(verdict, f"{NOTHING} in {checks}", NOTHING, evidence)
        return Answer.of(verdict, causes[0].summary, NOTHING, evidence)
    first, *further_causes = named
    if further_causes:
        evidence.append(f"{len(further_causes)} more {agreeing(len(further_causes), 'cause', 'causes')}, listed below")
    if len(named) < len(causes):
        evidence.append("a part of the difference has no explanation")
    party = f" (the {first.party})" if first.party in SIDES and first.party not in first.summary else ""
    culprit = f"{first.name} in the {first.party}" if first.party not in ("", "unknown") else first.name
    return Answer.of(verdict, first.summary + party, culprit, evidence)


def _where(e: Evidence, kinds: list[DivergenceKey]) -> str:
    place = e.earliest(*kinds)
    subject = "the run goes wrong" if e.alone else "the runs part"
    if place is None:
        return f"{subject} in the native stage"
    if place.phase in ("native", "lifted"):
        return f"{subject} in the {place.phase} stage"
    return f"{subject} from step {place.step} on"


def equal(e: Evidence, metrics: dict[str, Any]) -> Answer:
    """Return the answer for runs without a difference beyond the floor."""
    counts = e.counts
    compared = counts.compared_tokens
    cap = f" with a cap of {figure(e.cap)} nats that the user set" if e.cap is not None else ""
    evidence = [
        f"every check is within {_bound(e)}{cap}",
        f"{counted(len(e.steps), 'step')} and {counted(counts.samples, 'sample')} were compared",
    ]
    evidence += [f"rounding decides a tie at {counted(counts.flips, 'token')}"] if counts.flips else []
    evidence += [*not_shared(e), *lifted_sentences(e), *([] if e.mode == REPLAY else samplers_sentences(e))]
    outside = exceeded(metrics)
    if outside:
        more = f", and {len(outside) - 1} more" if len(outside) > 1 else ""
        evidence.append(f"beyond published limits all the same: {outside[0]}{more}")
    if e.mode == REPLAY:
        return Answer(f"{counted(compared, 'recorded token')} agree, scored and trained on again", evidence)
    if coupled(e) or e.native is None:
        return Answer(_tokens_equal(e), evidence)
    outcomes = list(e.native.outcomes.values())
    return Answer(f"{part_of(outcomes.count(EQUAL), len(outcomes), 'distribution')} equal", evidence)


def _bound(e: Evidence) -> str:
    """Return in words what decided: a measured floor, or a cap, which is never called a floor."""
    if not e.tolerance.capped:
        return "the floor"
    why = "no floor was measured" if np.isnan(e.tolerance.floor) else "ten times the floor is more"
    cap = f"the cap of {figure(e.tolerance.cap)} nats (cap, not floor: {why})"
    return cap if e.of_engines.capped else f"the floor between the engines and, against the learner, {cap}"
