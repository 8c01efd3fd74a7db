"""The interface of a planted engine fault: what it may change on the way into the engine and on the way out.

A plant is one small class. `FaultyEngine` applies the plants of a fault in the order in which the fault lists them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from scenarios.engines.engine_interface import Completion, Engine, Request, SyncGroup, SyncReport, WeightMeta
from scenarios.settings import Sampling, Scenario

Receive = Callable[[SyncGroup, list[WeightMeta]], SyncReport]


@dataclass(frozen=True)
class Setting:
    """The context of a plant: its own setting, the live engine below it, the model's path, and the scenario."""

    value: Any
    engine: Engine
    model_path: str
    scenario: Scenario
    first_sample: int = 0  # earlier samples are left as they are, so a fault can begin at step k

    @functools.cached_property
    def tokenizer(self) -> Any:
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(self.model_path)


class Plant:
    """A plant that changes nothing. Its methods see requests and completions of affected samples only."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting

    @property
    def value(self) -> Any:
        return self.setting.value

    def affects(self, sample: int) -> bool:
        """Whether the fault touches the sample of that number."""
        return sample >= self.setting.first_sample

    def sent(self, request: Request) -> Request:
        """Return what the engine gets for `request`."""
        return request

    def answered(self, request: Request, completion: Completion) -> Completion:
        """Return what is reported of the engine's answer. `request`: the one that the engine got."""
        return completion

    def batch(self, requests: list[Request], answers: list[Completion]) -> list[Completion]:
        """Return the same for a whole batch, in the order of the requests."""
        return [
            self.answered(request, answer) if self.affects(answer.sample) else answer
            for request, answer in zip(requests, answers, strict=True)
        ]

    def seed(self, seed: int) -> int:
        """Return the seed with which the engine draws."""
        return seed

    def sampling(self, sampling: Sampling) -> Sampling:
        """Return the sampling parameters with which the engine draws."""
        return sampling

    def order(self, requests: list[Request]) -> list[int]:
        """Return the places of `requests` in the order in which the engine gets them; its answers are put back into
        place.
        """
        return list(range(len(requests)))

    def scored(self, rows: list[list[float]]) -> list[list[float]]:
        """Return what is reported of teacher-forced log-probabilities."""
        return rows

    def remember(self, sampling: Sampling, seed: int) -> None:
        """Called with what the engine is about to draw with."""

    def around(self, receive: Receive) -> Receive:
        """Return `receive` with this plant around it."""
        return lambda group, weights: self.receive(receive, group, weights)

    def remove(self) -> None:
        """Leave the live engine as it was."""

    def receive(self, receive: Receive, group: SyncGroup, weights: list[WeightMeta]) -> SyncReport:
        """Run one weight sync. `receive`: the engine's own."""
        return receive(group, weights)


def prompt_of(request: Request) -> tuple[int, ...]:
    """Return the prompt of a request without the response tokens that a guided continuation appends to it."""
    return request.prompt_ids[: len(request.prompt_ids) - request.offset]


def drawn_before(request: Request) -> tuple[int, ...]:
    """Return the response tokens at the end of a guided continuation's prompt."""
    return request.prompt_ids[len(request.prompt_ids) - request.offset :]
