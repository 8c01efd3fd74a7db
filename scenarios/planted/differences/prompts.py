"""Planted faults of the prompt: sent as text, cut, without its last turn."""

from __future__ import annotations

import dataclasses

from scenarios.engines.engine_interface import Completion, Request
from scenarios.planted.differences.plant import Plant, Setting, drawn_before, prompt_of
from scenarios.planted.differences.request import PlantedRequest
from scenarios.prompts import described
from scenarios.settings import Sampling


def _with(request: Request, prompt: tuple[int, ...]) -> Request:
    return dataclasses.replace(request, prompt_ids=prompt + drawn_before(request))


class AsText(Plant):
    """The prompt is sent as text, so the engine's tokenizer adds its BOS again. Setting: sample numbers, or "all"."""

    def affects(self, sample: int) -> bool:
        return super().affects(sample) and (self.value == "all" or sample in self.value)

    def sent(self, request: Request) -> Request:
        if request.offset:
            return request
        text = self.setting.tokenizer.decode(list(request.prompt_ids), skip_special_tokens=False)
        return dataclasses.replace(PlantedRequest.of(request), prompt_text=str(text))


class Truncated(Plant):
    """Prompts are cut to `keep` tokens.

    Setting: {"side": "left" | "right", the side that is lost, "keep": tokens, "unsaid": whether the engine reports
    that it saw what it was sent}.
    """

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._whole: dict[int, tuple[int, ...]] = {}

    def answered(self, request: Request, completion: Completion) -> Completion:
        if not self.value.get("unsaid"):
            return completion
        return dataclasses.replace(completion, prompt_seen=self._whole[completion.sample])

    def sent(self, request: Request) -> Request:
        prompt, keep = prompt_of(request), int(self.value["keep"])
        self._whole[request.sample] = request.prompt_ids
        return _with(request, prompt[-keep:] if self.value["side"] == "left" else prompt[:keep])


class Untemplated(Plant):
    """The chat template is applied without its generation prompt. Setting: true."""

    def sent(self, request: Request) -> Request:
        prompt, end = prompt_of(request), tuple(described(self.setting.tokenizer)["generation_prompt"])
        return _with(request, prompt[: -len(end)]) if end and prompt[-len(end) :] == end else request


class PaddedRight(Plant):
    """Prompts of a batch that are shorter than its longest go on behind pads. Setting: true.

    The engine reports that it saw each prompt as it was sent. Scoring has no batch.
    """

    def remember(self, sampling: Sampling, seed: int) -> None:
        self._drawn = sampling, seed

    def batch(self, requests: list[Request], answers: list[Completion]) -> list[Completion]:
        longest, pad = max(len(request.prompt_ids) for request in requests), self.setting.tokenizer.pad_token_id
        shorter = [
            request for request in requests if len(request.prompt_ids) < longest and self.affects(request.sample)
        ]
        padded = [
            dataclasses.replace(request, prompt_ids=request.prompt_ids + (pad,) * (longest - len(request.prompt_ids)))
            for request in shorter
        ]
        sampling, seed = self._drawn
        drawn = self.setting.engine.generate(padded, sampling, seed=seed) if padded else []
        again = {
            request.sample: dataclasses.replace(answer, prompt_seen=request.prompt_ids)
            for request, answer in zip(shorter, drawn, strict=True)
        }
        return [again.get(request.sample, answer) for request, answer in zip(requests, answers, strict=True)]


class BosLost(Plant):
    """The first id of a prompt is lost on the way, and the engine reports that it saw it. Setting: true."""

    def sent(self, request: Request) -> Request:
        self._first = request.prompt_ids[:1]
        return dataclasses.replace(request, prompt_ids=request.prompt_ids[1:])

    def answered(self, request: Request, completion: Completion) -> Completion:
        return dataclasses.replace(completion, prompt_seen=(*self._first, *completion.prompt_seen))
