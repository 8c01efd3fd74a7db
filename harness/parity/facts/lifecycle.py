"""What the engines of one side did in their sleep: their recorded calls, in order.

An engine that shares a device with the learner sleeps while that trains. Its weights and its cache are then no longer
there, or are those of others: a sync must find its weights awake, a draw both.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from harness.recordings.store import Recording
from probes.format import mapping, number
from scenarios.engines.engine import Part

DRAWS = ("generate", "rescore")


class What(StrEnum):
    """What an engine must not: its name in a cause, and in words."""

    words: str

    SYNCED = "synced asleep", "was sent weights while its own were asleep: they are written into memory that it gave up"
    DRAWN = "drawn asleep", "was asked to draw or to score while it slept"
    UNSYNCED = (
        "drawn unsynced",
        "was asked to draw or to score before a sync brought back the weights that it had given up",
    )
    AWAKE = "stayed awake", "was not put to sleep after a rollout: the learner trains beside all of its memory"

    def __new__(cls, name: str, words: str) -> What:
        made = str.__new__(cls, name)
        made._value_, made.words = name, words
        return made


@dataclass(frozen=True)
class Misstep:
    """`engine`: its number among those of the side."""

    what: What
    step: int
    engine: int


@dataclass(frozen=True)
class Lifecycle:
    """`sleeps`: times that an engine fell asleep. `engines`: those whose calls were recorded. `freed`: bytes that
    sleep gave back to the device, largest; None where no device says so."""

    level: int
    sleeps: int
    engines: int
    missteps: tuple[Misstep, ...]
    freed: int | None = None


def lifecycle(recording: Recording) -> Lifecycle | None:
    """What was recorded of a run's sleep; None where its engines are to stay awake, and did."""
    level = int(number(mapping(recording.scenario.get("engine")).get("sleep_level"), 0))
    calls: dict[int, list[dict[str, Any]]] = {}
    for call in recording.all("call"):
        if call.get("role") == "rollout":
            calls.setdefault(int(number(call.get("rank"), 0)), []).append(call)
    slept = [call for own in calls.values() for call in own if call.get("name") == "sleep"]
    if not level and not slept:
        return None
    steps = recording.steps("rollout")
    missteps = [one for engine, own in sorted(calls.items()) for one in _missteps(engine, own, steps)]
    freed = [int(number(call.get("freed"), 0)) for call in slept if call.get("freed") is not None]
    return Lifecycle(level, len(slept), len(calls), tuple(missteps), max(freed, default=None))


def _missteps(engine: int, calls: list[dict[str, Any]], steps: list[int]) -> Iterator[Misstep]:
    asleep: set[str] = set()
    slept, given_up = set(), False
    for call in calls:
        name, step = call.get("name"), int(number(call.get("step"), -1))
        if name == "sleep":
            asleep, given_up = set(Part), call.get("level") == 2
            slept.add(step)
        elif name == "wake":
            asleep.discard(str(call.get("part")))
        elif name == "sync":
            given_up = False
            if Part.WEIGHTS in asleep:
                yield Misstep(What.SYNCED, step, engine)
        elif name in DRAWS and (asleep or given_up):
            yield Misstep(What.DRAWN if asleep else What.UNSYNCED, step, engine)
    yield from (Misstep(What.AWAKE, step, engine) for step in steps if slept and step not in slept)
