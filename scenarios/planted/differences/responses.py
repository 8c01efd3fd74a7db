"""Planted faults of the answer: log-probabilities shifted, ids changed, ends lost, samples exchanged."""

from __future__ import annotations

import dataclasses
import math
import random

from scenarios.engines.engine_interface import Completion, Request
from scenarios.planted.differences.plant import Plant, Setting, drawn_before, prompt_of


def numbered(completion: Completion, sample: int) -> Completion:
    """Return the completion under the number of its request."""
    return completion if completion.sample == sample else dataclasses.replace(completion, sample=sample)


class Shifted(Plant):
    """Log-probabilities are reported this many positions late; a negative setting is early. They wrap around."""

    def answered(self, request: Request, completion: Completion) -> Completion:
        row, by = completion.logprobs, int(self.value)
        return dataclasses.replace(completion, logprobs=row[-by:] + row[:-by])


class Noisy(Plant):
    """Uniform noise of this many nats on every log-probability, drawn or scored, new at every call."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._random = random.Random(0)

    def _noise(self, value: float) -> float:
        return value + self._random.uniform(-self.value, self.value)

    def answered(self, request: Request, completion: Completion) -> Completion:
        return dataclasses.replace(completion, logprobs=tuple(map(self._noise, completion.logprobs)))

    def scored(self, rows: list[list[float]]) -> list[list[float]]:
        return [list(map(self._noise, row)) for row in rows] if self.setting.first_sample == 0 else rows


class Moved(Plant):
    """Drawn log-probabilities are off by up to this many nats, depending on the token; scored ones are right.

    Setting: {"by": nats, "position": the first affected one, "spared": the first of every this many samples stays
    right}.
    """

    def affects(self, sample: int) -> bool:
        group = int(self.value.get("spared", 0))
        return super().affects(sample) and not (group and sample % group == 0)

    def answered(self, request: Request, completion: Completion) -> Completion:
        first, by = int(self.value.get("position", 0)) - request.offset, float(self.value["by"])
        pairs = enumerate(zip(completion.output_ids, completion.logprobs, strict=True))
        moved = tuple(p + by * math.sin(token + 1.0) * (place >= first) for place, (token, p) in pairs)
        return dataclasses.replace(completion, logprobs=moved)


class EndDropped(Plant):
    """The token that ended a sample is not returned. Setting: true."""

    def answered(self, request: Request, completion: Completion) -> Completion:
        if completion.finish_reason != "stop" or len(completion.output_ids) < 2:
            return completion
        return dataclasses.replace(completion, output_ids=completion.output_ids[:-1], logprobs=completion.logprobs[:-1])


class LimitFirst(Plant):
    """A sample whose last allowed token is an end token is reported as cut by the limit. Setting: true.

    SGLang 0.5.17 does so (schedule_batch.py, `update_finish_state`: it tests the limit before the end tokens).
    """

    def answered(self, request: Request, completion: Completion) -> Completion:
        limit = request.max_tokens or self.setting.scenario.sampling.max_tokens
        full = completion.finish_reason == "stop" and len(completion.output_ids) >= limit
        return dataclasses.replace(completion, finish_reason="length") if full else completion


class ShortContext(Plant):
    """The engine stops two tokens before the context ends, as SGLang does. Setting: the context in tokens."""

    def sent(self, request: Request) -> Request:
        room = max(1, int(self.value) - len(request.prompt_ids) - 2)
        limit = request.max_tokens or self.setting.scenario.sampling.max_tokens
        return dataclasses.replace(request, max_tokens=min(limit, room))


class Limited(Plant):
    """No response is longer than this many tokens. Setting: the tokens."""

    def sent(self, request: Request) -> Request:
        room = max(1, int(self.value) - request.offset)
        limit = request.max_tokens or self.setting.scenario.sampling.max_tokens
        return dataclasses.replace(request, max_tokens=min(limit, room))


class Permuted(Plant):
    """Each response of a batch goes to the next sample.

    Setting: "responses"; "answers": with the prompts that they saw; "pairs": the responses of the first two samples
    of each prompt are exchanged.
    """

    def batch(self, requests: list[Request], answers: list[Completion]) -> list[Completion]:
        places = [i for i, answer in enumerate(answers) if self.affects(answer.sample)]
        sources = places[1:] + places[:1]
        if self.value == "pairs":
            groups: dict[tuple[int, ...], list[int]] = {}
            for place in places:
                groups.setdefault(prompt_of(requests[place]), []).append(place)
            pairs = [group[:2] for group in groups.values() if len(group) > 1]
            places = [i for first, second in pairs for i in (first, second)]
            sources = [i for first, second in pairs for i in (second, first)]
        moved = list(answers)
        for place, source in zip(places, sources, strict=True):
            target, source_answer = answers[place], answers[source]
            prompt_seen = source_answer.prompt_seen if self.value == "answers" else target.prompt_seen
            moved[place] = dataclasses.replace(source_answer, sample=target.sample, prompt_seen=prompt_seen)
        return moved


class ForeignId(Plant):
    """The last token is an id that the tokenizer does not have. Setting: every how many samples.

    Each sample has it once. When it is drawn again for the floor, it is right, because no engine scores such an id.
    """

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._told: set[int] = set()

    def answered(self, request: Request, completion: Completion) -> Completion:
        if completion.sample % int(self.value) or request.offset or completion.sample in self._told:
            return completion
        self._told.add(completion.sample)
        ids = (*completion.output_ids[:-1], len(self.setting.tokenizer) + 3)
        return dataclasses.replace(completion, output_ids=ids)


class NotANumber(Plant):
    """A NaN in the model's output, which the engine reports as a stop. Setting: {"every": samples, "position":
    token}.
    """

    def answered(self, request: Request, completion: Completion) -> Completion:
        at = int(self.value["position"])
        if completion.sample % int(self.value["every"]) or request.offset or len(completion.output_ids) <= at:
            return completion
        return dataclasses.replace(
            completion,
            output_ids=completion.output_ids[: at + 1],
            logprobs=(*completion.logprobs[:at], math.nan),
            finish_reason="stop",
        )


class EncodedAgain(Plant):
    """Responses are decoded and encoded again. Where that gives other ids, the engine scores those. Setting: true."""

    def batch(self, requests: list[Request], answers: list[Completion]) -> list[Completion]:
        scored = list(answers)
        tokenizer = self.setting.tokenizer
        again: dict[int, tuple[int, ...]] = {}
        for place, answer in enumerate(answers):
            text = tokenizer.decode(list(answer.output_ids), skip_special_tokens=False)
            room = requests[place].max_tokens or self.setting.scenario.sampling.max_tokens
            ids = tuple(tokenizer.encode(text, add_special_tokens=False))[:room]  # a response stays within its limit
            if self.affects(answer.sample) and ids and ids != answer.output_ids:
                again[place] = ids
        before = {place: prompt_of(requests[place]) + drawn_before(requests[place]) for place in again}
        scores = self.setting.engine.rescore([before[place] + ids for place, ids in again.items()]) if again else []
        for (place, ids), row in zip(again.items(), scores, strict=True):
            scored[place] = dataclasses.replace(
                scored[place], output_ids=ids, logprobs=tuple(row[len(before[place]) - 1 :])
            )
        return scored
