"""Planted faults around a live engine: the wrapper changes what goes in or comes out at the public seam, nothing
inside.
 Each fault is what a real integration got wrong: text sent instead of ids, a mask shifted by one, an engine whose own
noise exceeds every floor. `wrap` takes plain JSON, so that a fault travels to an engine's actor.
"""

from __future__ import annotations

import dataclasses
import random
from typing import Any

from scenarios.rollout.engine import Completion, Engine, EngineInfo, Request, SyncGroup, SyncReport, WeightMeta
from scenarios.settings import Sampling


class FaultyEngine:
    """The engine of the seam, with one or more faults.

    text_samples: these samples' prompts are sent as text (the tokenizer adds its BOS again). shift: reported
    log-probabilities are moved by one position. noise: uniform noise of this many nats on every reported
    log-probability, anew at every call.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        model_path: str,
        text_samples: list[int] | None = None,
        shift: int = 0,
        noise: float = 0.0,
        noise_seed: int = 0,
    ) -> None:
        self._engine = engine
        self._text = set(text_samples or ())
        self._shift = shift
        self._noise = noise
        self._random = random.Random(noise_seed)
        if self._text:
            from transformers import AutoTokenizer

            self._tokenizer = AutoTokenizer.from_pretrained(model_path)

    def generate(self, requests: list[Request], sampling: Sampling, *, seed: int) -> list[Completion]:
        sent = [self._as_text(r) if r.sample in self._text and r.offset == 0 else r for r in requests]
        return [self._altered(c) for c in self._engine.generate(sent, sampling, seed=seed)]

    def _as_text(self, request: Request) -> Request:
        text = self._tokenizer.decode(list(request.prompt_ids), skip_special_tokens=False)
        return dataclasses.replace(request, prompt_text=str(text))

    def _altered(self, completion: Completion) -> Completion:
        row = list(completion.logprobs)
        if self._shift:
            row = row[-self._shift :] + row[: -self._shift]
        if self._noise:
            row = [value + self._random.uniform(-self._noise, self._noise) for value in row]
        return dataclasses.replace(completion, logprobs=tuple(row))

    def rescore(self, sequences: list[tuple[int, ...]]) -> list[list[float]]:
        scores = self._engine.rescore(sequences)
        if self._noise:
            scores = [[value + self._random.uniform(-self._noise, self._noise) for value in row] for row in scores]
        return scores

    def flush(self) -> None:
        self._engine.flush()

    def join(self, group: SyncGroup) -> None:
        self._engine.join(group)

    def receive(self, group: SyncGroup, weights: list[WeightMeta]) -> SyncReport:
        return self._engine.receive(group, weights)

    def info(self) -> EngineInfo:
        return self._engine.info()

    def stats(self) -> dict[str, float]:
        return self._engine.stats()

    def close(self) -> None:
        self._engine.close()


def wrap(engine: Engine, spec: dict[str, Any], *, model_path: str) -> Engine:
    """The engine with the faults of `spec` (keyword arguments of FaultyEngine)."""
    return FaultyEngine(engine, model_path=model_path, **spec)
