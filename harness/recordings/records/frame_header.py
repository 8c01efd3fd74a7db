"""What the header of a frame says of all its samples: the weights and the mode that they were drawn with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.recordings.records.values import filled_text, integer, parameters, sample_numbers, whole_number
from probes.format import number


@dataclass(frozen=True)
class SamplerFit:
    """What the learner says that an engine's own sampler did instead of what it was asked. `change`: a sampling
    parameter, or `joint`, `exclusive`, `blind`, `passed`; `gain`: nats of log-likelihood, and `over`, over the next
    best change; `before`, `after`: standard errors by which the surprisal is off; `tokens_outside`: that it could not
    have drawn, before and after."""

    change: str
    value: float
    gain: float
    over: float
    before: float
    after: float
    tokens_outside: tuple[int, int]

    @classmethod
    def of(cls, fit: Mapping[str, Any]) -> SamplerFit:
        outside = (whole_number(fit.get(name)) or 0 for name in ("outside_before", "outside_after"))
        return cls(
            change=filled_text(fit.get("change")) or "an unrecorded parameter",
            value=number(fit.get("value")),
            gain=number(fit.get("gain")),
            over=number(fit.get("over"), 0.0),
            before=number(fit.get("before")),
            after=number(fit.get("after")),
            tokens_outside=(next(outside), next(outside)),
        )


@dataclass(frozen=True)
class FrameHeader:
    """The fields of a frame. `guided`: its samples follow the tokens of another run; `unreached`: tokens of the guide
    that the engine did not reach, as recorded, and `uncompared`: why a framework's samples cannot be held against its
    learner, in words; `request_seed`: what the engine makes of seeds of requests; `fits`: of a `native_score`;
    `order`: the samples as the learner took them, or as they arrived from the engine; `unmatched`: why a row that was
    trained on has no sample number -> how many such rows; `tempered`: the processed log-probabilities are after the
    temperature alone, as the learner's are; `in_ratio`: the learner's importance ratio divides by the processed
    log-probabilities, whatever changed them."""

    weight_version: int | None
    mode: str | None
    guided: bool
    unreached: Any
    uncompared: str | None
    request_seed: str | None
    fits: tuple[SamplerFit, ...] | None
    order: tuple[int, ...] | None
    unmatched: Mapping[str, int]
    tempered: bool
    in_ratio: bool

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> FrameHeader:
        rows = {str(why): integer(count) for why, count in parameters(fields.get("unmatched")).items()}
        uncompared, fits = fields.get("uncompared"), fields.get("fits")
        return cls(
            weight_version=_version(fields.get("weight_version")),
            mode=filled_text(fields.get("mode")),
            guided=bool(fields.get("guided")),
            unreached=None if isinstance(uncompared, str) else uncompared,
            uncompared=filled_text(uncompared),
            request_seed=filled_text(fields.get("request_seed")),
            fits=tuple(SamplerFit.of(fit) for fit in map(parameters, fits) if fit) if isinstance(fits, list) else None,
            order=sample_numbers(fields.get("order")) or sample_numbers(fields.get("arrival")),
            unmatched={why: count for why, count in rows.items() if count},
            tempered=fields.get("tempered") is True,
            in_ratio=fields.get("ratio") is True,
        )


def _version(value: Any) -> int | None:
    """A weight version; frameworks write it as a float, too."""
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    return integer(value)
