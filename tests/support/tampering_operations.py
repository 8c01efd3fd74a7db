"""What a tampering does: one operation on a column of frames, or on a field of frames, events or run.json."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from recordings import FrameRecord, Jagged, Recording, jagged
from tampered_runs import BOTH, HALF, KEPT, ONE, PAIRS, STEPS, STOPPED, SWAPPED

_WITH_NATIVE = ("native", "repeat")

Change = Callable[[Recording, Recording, np.random.Generator], None]


@dataclass(frozen=True)
class Tampering:
    """`change(run, other, rng)` alters `run` in place; `other` is the other run as it was. `exchange` exchanges the
    field between both. `check`: of a TOLD one, the suspicion that speaks of it. `alike`: the pairs in which the same
    change in both runs leaves recordings that another sound job could have written."""

    name: str
    change: Change
    ends: str = STOPPED
    check: str = ""
    pairs: tuple[str, ...] = (*PAIRS, HALF)
    places: tuple[str, ...] = (*ONE, BOTH)
    alike: tuple[str, ...] = ()
    exchange: Callable[[Recording, Recording], None] | None = None

    @property
    def native(self) -> bool:
        """Does it need a native stage?"""
        return any(word in self.name for word in _WITH_NATIVE) or self.ends == KEPT

    def expected(self, kind: str, place: str) -> str:
        return KEPT if place == BOTH and kind in self.alike else self.ends


# --- operations on a column of frames -----------------------------------------------------------------


@dataclass(frozen=True)
class Column:
    """A column of the frames of one kind. `where`: values of frame fields that select them."""

    kind: str
    name: str
    where: dict[str, Any] = field(default_factory=dict)

    def frames(self, run: Recording) -> Iterator[FrameRecord]:
        return run.frames(self.kind, **self.where)

    def each(self, operation: Callable[[np.ndarray | Jagged, np.random.Generator], np.ndarray | Jagged]) -> Change:
        def change(run: Recording, other: Recording, rng: np.random.Generator) -> None:
            for frame in self.frames(run):
                if self.name in frame.arrays:
                    frame.arrays[self.name] = operation(frame.arrays[self.name], rng)

        return change

    def drop(self) -> Change:
        def change(run: Recording, other: Recording, rng: np.random.Generator) -> None:
            for frame in self.frames(run):
                frame.arrays.pop(self.name, None)

        return change

    def copied(self) -> Change:
        def change(run: Recording, other: Recording, rng: np.random.Generator) -> None:
            theirs = {(frame.step, frame.fields.get("variant")): frame for frame in self.frames(other)}
            for frame in self.frames(run):
                found = theirs.get((frame.step, frame.fields.get("variant")))
                if found is not None and self.name in found.arrays:
                    frame.arrays[self.name] = copy.deepcopy(found.arrays[self.name])

        return change

    def exchanged(self, one: Recording, two: Recording) -> None:
        first, second = copy.deepcopy(one), copy.deepcopy(two)
        rng = np.random.default_rng(0)
        self.copied()(one, second, rng)
        self.copied()(two, first, rng)


def flat(operation: Callable[[np.ndarray, np.random.Generator], np.ndarray]) -> Any:
    """An operation on values, of ragged and of flat columns."""

    def on(column: np.ndarray | Jagged, rng: np.random.Generator) -> np.ndarray | Jagged:
        if isinstance(column, Jagged):
            return Jagged(operation(column.values, rng), column.lengths.copy())
        return operation(column, rng)

    return on


def rows(operation: Callable[[list[Any]], list[Any]]) -> Any:
    def on(column: np.ndarray | Jagged, rng: np.random.Generator) -> np.ndarray | Jagged:
        if isinstance(column, Jagged):
            return jagged(operation(column.rows()))
        return np.array(operation(list(column)), column.dtype)

    return on


def _filled(value: float) -> Any:
    return flat(lambda values, rng: np.full_like(values, value))


OPERATIONS: dict[str, Any] = {
    "zero": _filled(0),
    "constant": flat(lambda values, rng: np.full_like(values, values[0])),
    "NaN": _filled(np.nan),
    "infinite": _filled(np.inf),
    "permuted": flat(lambda values, rng: values[rng.permutation(len(values))]),
    "samples rotated": rows(lambda found: [*found[1:], found[0]]),
    "rows cut": rows(lambda found: [row[: len(row) // 2] for row in found]),
    "shifted by one": rows(lambda found: [np.roll(row, 1) for row in found]),
}


def column(
    kind: str, name: str, *operations: str, where: dict[str, Any] | None = None, **options: Any
) -> Iterator[Tampering]:
    """The tamperings of one column: these operations, `dropped`, `copied` and `exchanged` among them."""
    found = Column(kind, name, where or {})
    title = f"{name} of {kind}" if not where else f"{name} of {kind} ({', '.join(map(str, where.values()))})"
    for operation in operations:
        if operation == "dropped":
            yield Tampering(f"{title}: dropped", found.drop(), **options)
        elif operation == "copied":
            yield Tampering(f"{title}: copied from the other run", found.copied(), **options | {"places": ONE})
        elif operation == "exchanged":
            told = options | {"places": (SWAPPED,)}
            yield Tampering(f"{title}: exchanged", found.copied(), exchange=found.exchanged, **told)
        else:
            yield Tampering(f"{title}: {operation}", found.each(OPERATIONS[operation]), **options)


# --- operations on fields of frames, events and run.json -----------------------------------------------


def frames(kind: str, **fields: Any) -> Change:
    """Set fields of every frame of a kind; a callable is given the old value and rng, None drops the field."""

    def change(run: Recording, other: Recording, rng: np.random.Generator) -> None:
        for frame in run.frames(kind):
            set_fields(frame.fields, fields, rng)

    return change


def events(kind: str, _where: dict[str, Any] | None = None, **fields: Any) -> Change:
    """The same of events."""

    def change(run: Recording, other: Recording, rng: np.random.Generator) -> None:
        for event in run.events(kind, **(_where or {})):
            set_fields(event, fields, rng)

    return change


def set_fields(target: dict[str, Any], fields: dict[str, Any], rng: np.random.Generator) -> None:
    for name, value in fields.items():
        if value is None:
            target.pop(name, None)
        elif name in target:
            target[name] = value(target[name], rng) if callable(value) else value


def without(*kinds: str, later: bool = False) -> Change:
    """Drop events and frames of these kinds; `later`: those of the second half of the steps."""

    def change(run: Recording, other: Recording, rng: np.random.Generator) -> None:
        for log in run.logs.values():
            log.events = [e for e in log.events if e[0] not in kinds or (later and e[1].get("step", 0) < STEPS // 2)]
            log.frames = [f for f in log.frames if f.kind not in kinds or (later and f.step < STEPS // 2)]

    return change


def in_turn(kind: str, *names: str, **where: Any) -> Change:
    """Each event of a kind says what the next one of its kind said."""

    def change(run: Recording, other: Recording, rng: np.random.Generator) -> None:
        found = list(run.events(kind, **where))
        told = [{name: copy.deepcopy(event.get(name)) for name in names} for event in found]
        for event, next_ in zip(found, [*told[1:], *told[:1]], strict=True):
            event.update(next_)

    return change


def first_for_all(kind: str, *names: str, **where: Any) -> Change:
    """Every event of a kind says what the first one said."""

    def change(run: Recording, other: Recording, rng: np.random.Generator) -> None:
        found = list(run.events(kind, **where))
        for event in found[1:]:
            event.update({name: copy.deepcopy(found[0].get(name)) for name in names})

    return change


def from_other(kind: str, *names: str, **where: Any) -> Change:
    """What the other run's events of a kind say, in their order."""

    def change(run: Recording, other: Recording, rng: np.random.Generator) -> None:
        for event, theirs in zip(run.events(kind, **where), other.events(kind, **where), strict=False):
            event.update({name: copy.deepcopy(theirs[name]) for name in names if name in theirs})

    return change


def exchanging(change: Change) -> Callable[[Recording, Recording], None]:
    def exchange(one: Recording, two: Recording) -> None:
        first, second = copy.deepcopy(one), copy.deepcopy(two)
        rng = np.random.default_rng(0)
        change(one, second, rng)
        change(two, first, rng)

    return exchange


def manifest(path: str, value: Any) -> Change:
    """Set `a.b.c` of run.json; None drops it."""

    def change(run: Recording, other: Recording, rng: np.random.Generator) -> None:
        *parents, last = path.split(".")
        target: Any = run.manifest
        for part in parents:
            target = target.setdefault(part, {})
        if value is None:
            target.pop(last, None)
        else:
            target[last] = value

    return change


def together(*changes: Change) -> Change:
    def change(run: Recording, other: Recording, rng: np.random.Generator) -> None:
        for one in changes:
            one(run, other, rng)

    return change
