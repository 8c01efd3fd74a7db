"""Planted faults of the draw: another seed, cloned samples, another order of filters, other log-probabilities."""

from __future__ import annotations

import dataclasses

from scenarios.engines.engine_interface import Request
from scenarios.planted.differences.plant import Plant, Setting
from scenarios.planted.differences.request import PlantedRequest
from scenarios.settings import Sampling


class OtherSeed(Plant):
    """The engine ignores the given seed. Setting: the difference of the seed that it uses."""

    def seed(self, seed: int) -> int:
        return seed + int(self.value)


class OtherSampling(Plant):
    """The engine draws with other canonical parameters than it was given. Setting: {name: value}."""

    def sampling(self, sampling: Sampling) -> Sampling:
        return dataclasses.replace(sampling, **self.value)


class Cloned(Plant):
    """Samples of one prompt share one stream of random numbers. Setting: how many samples."""

    def sent(self, request: Request) -> Request:
        return dataclasses.replace(request, sample=request.sample - request.sample % int(self.value))


class OtherStream(Plant):
    """The engine uses the random numbers of another engine, as if it had lost its own seed.

    Setting: how many engines before it that one is.
    """

    def sent(self, request: Request) -> Request:
        back = int(self.value) * self.setting.scenario.rollout.samples_per_prompt
        return dataclasses.replace(request, sample=request.sample - back)


class SeedsIgnored(Plant):
    """Requests are drawn with wrong seeds, different at every call. Setting: true."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._calls = 0

    def remember(self, sampling: Sampling, seed: int) -> None:
        self._calls += 1

    def sent(self, request: Request) -> Request:
        return dataclasses.replace(request, sample=request.sample + 1_000_000 * self._calls)


class OtherDraw(Plant):
    """Fields of the coupled draw are replaced. Setting: {field of `coupled_draw.PlantedDraw`: value}."""

    def sent(self, request: Request) -> Request:
        planted = PlantedRequest.of(request)
        return dataclasses.replace(planted, draw={**planted.draw, **self.value})


class Reordered(Plant):
    """A control: the batch reaches the engine in reverse order. Setting: true."""

    def order(self, requests: list[Request]) -> list[int]:
        return list(range(len(requests)))[::-1]
