"""Planted leaks: memory that a rank of the learner, or the actor of an engine, keeps. They change no number."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from scenarios.engines.engine_interface import Request
from scenarios.planted.differences.plant import Plant, Setting

MIB = 2**20  # bytes


class Leaking(Plant):
    """The engine's actor keeps memory in each step. Setting: {"mib": per step, "until": the first step without a
    leak}.
    """

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._kept: dict[int, bytes] = {}

    def sent(self, request: Request) -> Request:
        rollout = self.setting.scenario.rollout
        step = request.sample // (rollout.prompts_per_step * rollout.samples_per_prompt)
        if step not in self._kept and step < self.value.get("until", step + 1):
            self._kept[step] = _written(self.value)
        return request


def leak(role: Any, settings: Mapping[str, Any]) -> None:
    """Keep `mib` MiB in each update of this rank, before the update number `until`, counted from 0.

    The present optimizer holds them; a `reset` replaces it and so frees them.
    """
    optimizer, kept, updates = role.optimizer, [], itertools.count()
    step = optimizer.step

    def planted(*arguments: Any) -> float:
        number = next(updates)
        if number < settings.get("until", number + 1):
            kept.append(_written(settings))
        norm: float = step(*arguments)
        return norm

    optimizer.step = planted


def _written(settings: Mapping[str, Any]) -> bytes:
    """Return memory that is resident, because it was written to."""
    return b"\1" * int(settings["mib"] * MIB)
