"""What engines recorded while they worked: calls, figures of each step, and requests that a router gave them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.recordings.records.values import filled_text, integer, whole_number
from probes.format import number


@dataclass(frozen=True)
class EngineCall:
    """One `call` event: a call of an engine. Of `sleep`: its `level`, and the bytes of the device that it `freed`; of
    `wake`: the `part` that it brought back."""

    role: str | None
    engine_number: int
    name: str | None
    step: int
    level: int | None
    freed: int | None
    part: str | None

    @classmethod
    def of(cls, event: Mapping[str, Any]) -> EngineCall:
        step = whole_number(event.get("step"))
        return cls(
            role=filled_text(event.get("role")),
            engine_number=whole_number(event.get("rank")) or 0,
            name=filled_text(event.get("name")),
            step=-1 if step is None else step,
            level=integer(event.get("level")),
            freed=whole_number(event.get("freed")),
            part=filled_text(event.get("part")),
        )


@dataclass(frozen=True)
class EngineStats:
    """One `engine_stats` event, of the rollout of a step: its tokens, the share of prompt tokens that were cached, and
    the peaks of requests that ran and waited and of the KV pool's use (0 to 1). NaN for what the engine does not
    report."""

    step: int | None
    prompt_tokens: float
    cache_hit_rate: float
    generated_tokens: float
    running: float
    waiting: float
    kv_usage: float

    @classmethod
    def of(cls, event: Mapping[str, Any]) -> EngineStats:
        return cls(
            step=integer(event.get("step")),
            prompt_tokens=number(event.get("prompt_tokens")),
            cache_hit_rate=number(event.get("cache_hit_rate")),
            generated_tokens=number(event.get("generated_tokens")),
            running=number(event.get("running")),
            waiting=number(event.get("waiting")),
            kv_usage=number(event.get("kv_usage")),
        )


@dataclass(frozen=True)
class RoutedRequest:
    """One `answered` event: an engine behind a router drew a sample from its response token `offset` on."""

    engine_number: int
    sample: int | None
    offset: int | None

    @classmethod
    def of(cls, event: Mapping[str, Any]) -> RoutedRequest:
        return cls(
            engine_number=whole_number(event.get("rank")) or 0,
            sample=integer(event.get("sample")),
            offset=integer(event.get("offset")),
        )
