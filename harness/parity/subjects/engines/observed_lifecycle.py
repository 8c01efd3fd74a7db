"""Sleep and wake of the engines of one side, from their recorded calls in order.

An engine that shares a device with the learner sleeps while the learner trains. Its weights and its cache are then
gone, or belong to someone else: a sync must find its weights awake, and a draw needs both awake. Weights that were kept
aside during sleep are those of the version before. So a draw of another version must come after a sync.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from harness.recordings.records.engine_activity import EngineCall
from harness.recordings.store import Recording
from scenarios.engines.engine_interface import Part

DRAWS = ("generate", "rescore")


class What(StrEnum):
    """What an engine must not do, with its name in a cause and a description."""

    words: str

    SYNCED = (
        "synced asleep",
        "was sent weights while its own were asleep: they are written into memory that it released",
    )
    DRAWN = "drawn asleep", "was asked to draw or to score while it slept"
    UNSYNCED = (
        "drawn unsynced",
        "was woken and asked to draw or to score before a sync brought it the learner's current weights: it had "
        "discarded its own when it fell asleep, or still had those of an earlier version",
    )
    AWAKE = "stayed awake", "was not put to sleep after a rollout: the learner trains beside all of its memory"

    def __new__(cls, name: str, words: str) -> What:
        made = str.__new__(cls, name)
        made._value_, made.words = name, words
        return made


@dataclass(frozen=True)
class Misstep:
    """One wrong call. `engine`: its number on its side."""

    what: What
    step: int
    engine: int


@dataclass(frozen=True)
class Lifecycle:
    """The sleep of one side's engines.

    `sleeps`: how often an engine fell asleep. `engines`: how many did. `freed`: the most bytes that sleep gave back to
    the device; None where no device reported it.
    """

    level: int
    sleeps: int
    engines: int
    missteps: tuple[Misstep, ...]
    freed: int | None = None


def lifecycle(recording: Recording, versions: Mapping[int, int | None]) -> Lifecycle | None:
    """Return what was recorded of a run's sleep; None where its engines should stay awake, and did.

    `versions`: the weight version that each step reports to have drawn with.
    """
    level = recording.records.settings.engine.sleep_level or 0
    calls: dict[int, list[EngineCall]] = {}
    for call in recording.records.calls:
        if call.role == "rollout":
            calls.setdefault(call.engine_number, []).append(call)
    slept = [call for engine_calls in calls.values() for call in engine_calls if call.name == "sleep"]
    if not level and not slept:
        return None
    drawn = {step: versions.get(step) for step in recording.steps("rollout")}
    missteps: list[Misstep] = []
    for engine, engine_calls in sorted(calls.items()):
        missteps += _missteps(engine, engine_calls, drawn)
    freed = [call.freed for call in slept if call.freed is not None]
    sleepers = {call.engine_number for call in slept}
    return Lifecycle(level, len(slept), len(sleepers), tuple(missteps), max(freed, default=None))


def _missteps(engine: int, calls: list[EngineCall], versions: Mapping[int, int | None]) -> Iterator[Misstep]:
    """Yield the wrong calls of one engine. `versions`: those of each step that drew."""
    state = _State(records_syncs=any(call.name == "sync" for call in calls))
    for call in calls:
        wrong = state.after(call, versions)
        if wrong is not None:
            yield Misstep(wrong, call.step, engine)
    if state.slept:
        yield from (Misstep(What.AWAKE, step, engine) for step in versions if step not in state.slept)


@dataclass
class _State:
    """What an engine holds, call after call.

    `asleep`: its parts that sleep. `slept`: the steps in which it fell asleep. `discarded`: whether its weights are
    gone since then. `version`: the weight version that it drew with since the last sync; None where none is known.
    """

    records_syncs: bool
    asleep: set[str] = field(default_factory=set)
    slept: set[int] = field(default_factory=set)
    discarded: bool = False
    version: int | None = None

    def after(self, call: EngineCall, versions: Mapping[int, int | None]) -> What | None:
        """Follow the next call. Return what is wrong with it; None where nothing is."""
        if call.name == "sleep":
            # At level 1 the weights are kept aside, at level 2 they are not (vLLM's sleep mode).
            self.asleep, self.discarded = set(Part), call.level == 2
            self.slept.add(call.step)
        elif call.name == "wake":
            self.asleep.discard(call.part or "")
        elif call.name == "sync":
            self.discarded, self.version = False, None
            return What.SYNCED if Part.WEIGHTS in self.asleep else None
        elif call.name in DRAWS:
            return self._drawn(versions.get(call.step) if call.name == "generate" else None)
        return None

    def _drawn(self, version: int | None) -> What | None:
        if self.asleep:
            return What.DRAWN
        if self.discarded or self._is_of_another(version):
            return What.UNSYNCED
        if version is not None:
            self.version = version
        return None

    def _is_of_another(self, version: int | None) -> bool:
        """Whether the version changed since the last draw, though no sync was recorded between them."""
        if not self.records_syncs or not self.slept or None in (version, self.version):
            return False
        return version != self.version
