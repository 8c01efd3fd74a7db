"""Planted faults around a live engine: they change what goes in or comes out at its public interface.

Each fault is an error of a real integration: text sent instead of ids, a mask shifted by one, an engine whose own
noise exceeds every floor. `wrap` takes plain JSON, so that a fault can be sent to an engine's actor.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scenarios.engines.engine_interface import (
    Completion,
    Engine,
    EngineInfo,
    Part,
    Request,
    SyncGroup,
    SyncReport,
    WeightMeta,
)
from scenarios.engines.load import Load
from scenarios.planted.differences import draws, inside, memory, prompts, responses, router, weights
from scenarios.planted.differences.foreign import imported
from scenarios.planted.differences.plant import Plant, Receive, Setting
from scenarios.settings import Sampling, Scenario

# Keyword of FaultyEngine -> plant. The plant's docstring describes its setting.
PLANTS: dict[str, type[Plant]] = {
    "text_samples": prompts.AsText,
    "truncate": prompts.Truncated,
    "no_generation_prompt": prompts.Untemplated,
    "bos_lost": prompts.BosLost,
    "padded_right": prompts.PaddedRight,
    "shift": responses.Shifted,
    "noise": responses.Noisy,
    "moved": responses.Moved,
    "drop_end": responses.EndDropped,
    "limit_first": responses.LimitFirst,
    "short_context": responses.ShortContext,
    "limit": responses.Limited,
    "permute": responses.Permuted,
    "foreign_id": responses.ForeignId,
    "nan_stop": responses.NotANumber,
    "encoded_again": responses.EncodedAgain,
    "seed_offset": draws.OtherSeed,
    "sampling": draws.OtherSampling,
    "clones": draws.Cloned,
    "stream": draws.OtherStream,
    "seeds_ignored": draws.SeedsIgnored,
    "draw": draws.OtherDraw,
    "reorder": draws.Reordered,
    "names_exchanged": weights.NamesExchanged,
    "digests_repeated": weights.DigestsRepeated,
    "keep_cache": weights.CacheKept,
    "put_back": weights.PutBack,
    "drawn_before_sync": weights.DrawnBeforeSync,
    "kept_copy": inside.KeptCopy,
    "bent": inside.Bent,
    "misloaded": inside.Misloaded,
    "rotary": inside.RotarySpoilt,
    "coarse": inside.Coarse,
    "rebased": inside.Rebased,
    "row_altered": inside.RowAltered,
    "leak": memory.Leaking,
    "first_engine_only": router.FirstOnly,
    "asked_again": router.AskedAgain,
}


class Wrapper:
    """An engine that passes every call on; the base class of a wrapper of your own."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    @property
    def load(self) -> Load:
        return self.engine.load

    def mapped(self, sampling: Any) -> Any:
        return self.engine.mapped(sampling)

    def generate(self, requests: list[Request], sampling: Sampling, *, seed: int) -> list[Completion]:
        return self.engine.generate(requests, sampling, seed=seed)

    def rescore(self, sequences: list[tuple[int, ...]]) -> list[list[float]]:
        return self.engine.rescore(sequences)

    def flush(self) -> None:
        self.engine.flush()

    def join(self, group: SyncGroup) -> None:
        self.engine.join(group)

    def receive(self, group: SyncGroup, weights: list[WeightMeta]) -> SyncReport:
        return self.engine.receive(group, weights)

    def sleep(self, level: int) -> None:
        self.engine.sleep(level)

    def wake(self, part: Part) -> None:
        self.engine.wake(part)

    def info(self) -> EngineInfo:
        return self.engine.info()

    def stats(self) -> dict[str, float]:
        return self.engine.stats()

    def close(self) -> None:
        self.engine.close()

    def remove(self) -> None:
        """Leave the live engine as it was, because another run continues with it."""


class FaultyEngine(Wrapper):
    """An engine with one or more faults; the keywords are those of `PLANTS`.

    first_sample: samples with a lower number are left as they are. native: plants of the native stage alone, by
    keyword.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        model_path: str,
        scenario: Scenario,
        first_sample: int = 0,
        native: dict[str, Any] | None = None,
        **plants: Any,
    ) -> None:
        super().__init__(engine)
        if scenario.rollout.mode == "native":
            plants |= native or {}
        self._plants = [
            PLANTS[name](Setting(value, engine, model_path, scenario, first_sample)) for name, value in plants.items()
        ]

    def generate(self, requests: list[Request], sampling: Sampling, *, seed: int) -> list[Completion]:
        for plant in self._plants:
            sampling, seed = plant.sampling(sampling), plant.seed(seed)
            plant.remember(sampling, seed)
        sent = list(requests)
        for plant in self._plants:
            sent = [
                plant.sent(sent_request) if plant.affects(request.sample) else sent_request
                for sent_request, request in zip(sent, requests, strict=True)
            ]
        order = list(range(len(sent)))
        for plant in self._plants:
            order = [order[place] for place in plant.order([sent[place] for place in order])]
        drawn = self.engine.generate([sent[place] for place in order], sampling, seed=seed)
        answers: list[Any] = [None] * len(sent)
        for place, answer in zip(order, drawn, strict=True):
            answers[place] = responses.numbered(answer, requests[place].sample)
        for plant in self._plants:
            answers = plant.batch(sent, answers)
        return answers

    def rescore(self, sequences: list[tuple[int, ...]]) -> list[list[float]]:
        rows = self.engine.rescore(sequences)
        for plant in self._plants:
            rows = plant.scored(rows)
        return rows

    def receive(self, group: SyncGroup, weights: list[WeightMeta]) -> SyncReport:
        receive: Receive = self.engine.receive
        for plant in self._plants:
            receive = plant.around(receive)
        return receive(group, weights)

    def remove(self) -> None:
        for plant in self._plants:
            plant.remove()


def wrap(engine: Engine, spec: Mapping[str, Any], *, model_path: str, scenario: Scenario, number: int = 0) -> Wrapper:
    """Return the engine with the faults of `spec`.

    `spec`: keyword arguments of FaultyEngine, or {"wrapper": "FILE.py:Class", "settings": {...}} for a wrapper of
    your own, which is called with the engine and the settings. "only": the number of the engine that gets them, where
    a run has several.
    """
    if spec.get("only", number) != number:
        return Wrapper(engine)
    if "wrapper" not in spec:
        plants = {name: value for name, value in spec.items() if name != "only"}
        return FaultyEngine(engine, model_path=model_path, scenario=scenario, **plants)
    path, _, name = str(spec["wrapper"]).rpartition(":")
    made: Wrapper = getattr(imported(Path(path)), name)(engine, **spec.get("settings", {}))
    return made
