"""What was recorded of the learner: digests after each update, and the figures of each step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from harness.recordings.records.values import Parameters, filled_text, integer, parameters, sample_numbers, whole_number
from probes.format import number

DIGESTED = ("actor", "critic", "batch")


@dataclass(frozen=True)
class FirstUpdate:
    """The first update of a step. `parts`: the samples of each micro-batch; None where they were not recorded.
    `losses`: what each role's gradients were of, over all ranks."""

    parts: tuple[tuple[int, ...], ...] | None
    losses: Mapping[str, float]

    @classmethod
    def of(cls, section: Parameters) -> FirstUpdate:
        parts = section.get("parts")
        numbers = [sample_numbers(part) for part in parts] if isinstance(parts, list) else [None]
        losses = parameters(section.get("losses"))
        return cls(
            parts=None if None in numbers else tuple(part for part in numbers if part is not None),
            losses={role: number(loss) for role, loss in losses.items()},
        )


@dataclass(frozen=True)
class LearnerUpdate:
    """One `learner` event, after the update of a step. `digests`: of the actor's weights, the critic's and the batch,
    by these names, those that were recorded; `norms`: of each role's gradients before they were clipped."""

    file: str
    step: int | None
    digests: Mapping[str, str]
    norms: Mapping[str, tuple[float, ...]]
    first: FirstUpdate

    @classmethod
    def of(cls, event: Mapping[str, Any]) -> LearnerUpdate:
        norms = parameters(event.get("norms"))
        return cls(
            file=str(event.get("file")),
            step=integer(event.get("step")),
            digests={part: digest for part in DIGESTED if (digest := filled_text(event.get(part)))},
            norms={role: tuple(map(number, sizes)) for role, sizes in norms.items() if isinstance(sizes, list)},
            first=FirstUpdate.of(parameters(event.get("first"))),
        )

    def agreeing(self, update: LearnerUpdate) -> LearnerUpdate:
        """This update without the digests that another record of the step has otherwise, or lacks."""
        agreed = {part: digest for part, digest in self.digests.items() if update.digests.get(part) == digest}
        return replace(self, digests=agreed)


NOTHING_LEARNED = LearnerUpdate.of({})  # of a step without a record of its update


@dataclass(frozen=True)
class PromptBatch:
    """One `data` event: the samples of a step, by number, and one digest of their prompts in that order."""

    step: int | None
    samples: tuple[int, ...] | None
    digest: str | None

    @classmethod
    def of(cls, event: Mapping[str, Any]) -> PromptBatch:
        return cls(
            step=integer(event.get("step")),
            samples=sample_numbers(event.get("samples")),
            digest=filled_text(event.get("prompts")),
        )


@dataclass(frozen=True)
class RankAnswers:
    """One `share` event: the samples that a rank was asked about in a phase, and the digest of its answers.

    `sorted_digest`: that of the same numbers in ascending order.
    """

    rank: int
    step: int | None
    phase: str | None
    samples: tuple[int, ...] | None
    digest: str | None
    sorted_digest: str | None

    @classmethod
    def of(cls, event: Mapping[str, Any]) -> RankAnswers:
        return cls(
            rank=whole_number(event.get("rank")) or 0,
            step=integer(event.get("step")),
            phase=filled_text(event.get("phase")),
            samples=sample_numbers(event.get("samples")),
            digest=filled_text(event.get("digest")),
            sorted_digest=filled_text(event.get("sorted")),
        )


@dataclass(frozen=True)
class StepMetrics:
    """One `step` event: what the trainer measured in a step, by name."""

    step: int | None
    metrics: Parameters

    @classmethod
    def of(cls, event: Mapping[str, Any]) -> StepMetrics:
        return cls(step=integer(event.get("step")), metrics=parameters(event.get("metrics")))

    def number(self, name: str) -> float:
        """One figure; NaN where it was not recorded."""
        return number(self.metrics.get(name))
