"""Planted faults of a weight sync on the engine's side: names exchanged, wrong digests, a kept cache, early tokens."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from scenarios.engines.engine_interface import Completion, Part, Request, SyncGroup, SyncReport, WeightMeta
from scenarios.planted.differences.plant import Plant, Receive, Setting
from scenarios.settings import Sampling


class NamesExchanged(Plant):
    """Two tensors of one shape are loaded into each other's place. Setting: {"names": [a, b], "from": weight
    version}.

    The digests are those of what arrived, under the names that were sent: they prove the transport, not the loading.
    """

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._version = -1

    def receive(self, receive: Receive, group: SyncGroup, weights: list[WeightMeta]) -> SyncReport:
        self._version += 1
        if self._version < int(self.value.get("from", 0)):
            return receive(group, weights)
        first, second = self.value["names"]
        exchanged = {first: second, second: first}
        report = receive(group, [dataclasses.replace(w, name=exchanged.get(w.name, w.name)) for w in weights])
        return dataclasses.replace(
            report, received={exchanged.get(name, name): digest for name, digest in report.received.items()}
        )


class DigestsRepeated(Plant):
    """The engine reports the digests that it was told instead of those of what arrived. Setting: true."""

    def receive(self, receive: Receive, group: SyncGroup, weights: list[WeightMeta]) -> SyncReport:
        report = receive(group, weights)
        digests = {weight.name: weight.digest for weight in weights}
        return dataclasses.replace(
            report, received={name: digests[name] for name in report.received if name in digests}
        )


class CacheKept(Plant):
    """The prefix cache survives weight syncs and sleep, at which engines would flush it.

    Setting: true, or "always": every order to flush it is answered with success and ignored.
    """

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._engine.sleep = self._engine.wake = lambda _: None  # on a CPU sleep releases nothing
        if self.value == "always":
            self._engine.flush = lambda: None

    @property
    def _engine(self) -> Any:
        return self.setting.engine

    def remove(self) -> None:
        for name in ("sleep", "wake", "flush"):
            vars(self._engine).pop(name, None)

    def receive(self, receive: Receive, group: SyncGroup, weights: list[WeightMeta]) -> SyncReport:
        engine = self._engine
        sender = getattr(engine, "_engine", None)  # SGLang's own engine, whose updates flush by default
        update = getattr(sender, "update_weights_from_distributed", None)
        engine.flush = lambda: None
        if sender is not None and update is not None:
            sender.update_weights_from_distributed = functools.partial(update, flush_cache=False)
        try:
            return receive(group, weights)
        finally:
            if self.value != "always":
                del engine.flush
            if sender is not None and update is not None:
                del sender.update_weights_from_distributed


class PutBack(Plant):
    """The embedded engine gets its old weights back when its cache wakes, after a sync and its check. Needs sleep.

    Setting: the first weight version.
    """

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._version = -1
        self._before: dict[str, Any] = {}
        self._wake, self._engine.wake = self._engine.wake, self.wake

    @property
    def _engine(self) -> Any:
        return self.setting.engine

    def receive(self, receive: Receive, group: SyncGroup, weights: list[WeightMeta]) -> SyncReport:
        self._version += 1
        if self._version >= int(self.value):
            self._before = {name: tensor.clone() for name, tensor in self._engine.model.state_dict().items()}
        return receive(group, weights)

    def wake(self, part: Part) -> None:
        self._wake(part)
        if part == Part.CACHE and self._before:
            self._engine.model.load_state_dict(self._before)

    def remove(self) -> None:
        vars(self._engine).pop("wake", None)


class DrawnBeforeSync(Plant):
    """The first tokens of a response are drawn before the weight sync, the rest after it.

    Setting: {"tokens": how many, "from": weight version}. The requests of the coming step are known beforehand,
    because they are a function of the scenario.
    """

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._version = -1
        self._early: dict[int, Completion] = {}
        self._last: tuple[Sampling, int] | None = None

    @functools.cached_property
    def _prompts(self) -> Any:
        from scenarios import prompts

        return prompts.load(self.setting.scenario, self.setting.tokenizer)

    def remember(self, sampling: Sampling, seed: int) -> None:
        """Keep what the engine was last asked to draw with."""
        self._last = sampling, seed

    def receive(self, receive: Receive, group: SyncGroup, weights: list[WeightMeta]) -> SyncReport:
        self._version += 1
        self._early = {}
        step, scenario = self._version, self.setting.scenario
        if self._last is not None and step >= int(self.value.get("from", 1)) and step < scenario.steps:
            sampling, seed = self._last
            requests = [
                Request(sample, ids, max_tokens=int(self.value["tokens"])) for sample, ids in self._prompts.batch(step)
            ]
            answers = self.setting.engine.generate(requests, sampling, seed=seed)
            self._early = {answer.sample: answer for answer in answers if answer.finish_reason == "length"}
        return receive(group, weights)

    def sent(self, request: Request) -> Request:
        early = self._early.get(request.sample)
        if early is None or request.offset or not request.max_tokens or request.max_tokens <= len(early.output_ids):
            return request
        return dataclasses.replace(
            request,
            prompt_ids=request.prompt_ids + early.output_ids,
            offset=len(early.output_ids),
            max_tokens=request.max_tokens - len(early.output_ids),
        )

    def answered(self, request: Request, completion: Completion) -> Completion:
        early = self._early.get(completion.sample)
        if early is None or request.prompt_ids[: len(request.prompt_ids) - request.offset] != early.prompt_seen:
            return completion
        if request.prompt_ids[len(early.prompt_seen) :] != early.output_ids:
            return completion
        del self._early[completion.sample]
        return dataclasses.replace(
            completion,
            prompt_seen=completion.prompt_seen[: len(early.prompt_seen)],
            output_ids=early.output_ids + completion.output_ids,
            logprobs=early.logprobs + completion.logprobs,
        )
