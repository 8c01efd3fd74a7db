"""Rule about ranks that an error took out of the `try` in which the others wait, and that wait in its cleanup.

A rank in an `except` has caught an error: the text says so. A rank in a `finally` may also have come there in good
order; the heartbeat of its probe says which error it handles. An error that only one side met says why they wait in
different operations. It names a rank only if no larger side met it, and if it does not end a loop in good order.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from harness.triage import try_text
from harness.triage.evidence import Frame, HandledError
from harness.triage.rules import standing
from harness.triage.rules.ruling import Case, Ruling
from harness.triage.try_text import LeftTry
from reports.text import agreeing


@dataclass(frozen=True)
class Escape:
    """Ranks at one place, of which each has left a `try`, and those at the places that are inside it.

    error: what took them out of it; None if nothing says so, or only that they caught one.
    """

    place: standing.Place
    left: LeftTry
    error: HandledError | None
    inside: tuple[standing.Place, ...]

    @property
    def is_certain(self) -> bool:
        """Whether an error took them out of it."""
        return self.left.by == "except" or self.error is not None

    @property
    def in_good_order(self) -> bool:
        """Whether the heartbeats say that no error took them out of it."""
        beats = [subject.process.beat for subject in self.place.subjects]
        return not self.is_certain and all(beat is not None and beat.tells_handled for beat in beats)

    @property
    def is_odd(self) -> bool:
        """Whether they are to blame: no larger side met the error, and it is no way to end a loop."""
        fewer = len(self.place.subjects) <= sum(len(place.subjects) for place in self.inside)
        ends = self.left.ends or (self.error is not None and try_text.ends_loop(self.error.error))
        return self.is_certain and fewer and not ends

    @property
    def words(self) -> str:
        """How they left, and where they wait, as the verb of a sentence."""
        wait = f"{agreeing(len(self.place.subjects), 'waits', 'wait')} at {_line(self.place)}"
        if self.error is not None:
            kind = self.error.error.partition(":")[0]
            return f"left by {kind} at {_at(self.error.raised)} and {wait} in its `{self.left.by}`"
        if self.left.by == "except":
            return f"caught an error by the `except` at {_at(self.left.frame, self.left.line)} and {wait}"
        how = " in good order" if self.in_good_order else ""
        return f"left the `try` at {_at(self.left.frame, self.left.line)}{how} for {_line(self.place)} in its `finally`"


def escape(places: Sequence[standing.Place]) -> Escape | None:
    """The ranks at one place that have left the `try` in which all others are; None without such."""
    for place in places:
        others = tuple(each for each in places if each is not place)
        for frame in standing.users_frames(place):
            left = try_text.left_try(frame)
            if left is not None and others and all(_is_inside(left, each) for each in others):
                return Escape(place, left, _error(place, left), others)
    return None


def _is_inside(left: LeftTry, place: standing.Place) -> bool:
    """Whether processes stand where another one left."""
    return any(left.covers(frame) for frame in standing.users_frames(place))


def _error(place: standing.Place, left: LeftTry) -> HandledError | None:
    """The error that every process at a place handles by this `try`, of the first; None where one handles none."""
    beats = [subject.process.beat for subject in place.subjects]
    errors = [beat.handles for beat in beats if beat is not None and beat.handles is not None]
    return errors[0] if len(errors) == len(beats) and all(left.covers(error.caught) for error in errors) else None


def escaped(case: Case, places: Sequence[standing.Place]) -> Ruling | None:
    """K1: an error took a rank out of what the others wait in. K2 where it may have left in good order, or where the
    error may be how a loop ends: then nobody is named."""
    its = escape(places)
    if its is None:
        return None
    others = "; ".join(f"{place.who} at {place.words}" for place in its.inside[:1])
    why = f"{its.words}, so that it is not in what the others wait in"
    if its.error is not None:
        why += f": {its.error.error}"
    subjects = {subject.key: why for subject in its.place.subjects}
    return Ruling(
        "HUNG",
        f"{its.place.who} {its.words}; {others}",
        "K1" if its.is_odd else "K2",
        subjects if its.is_odd else {},
        place="; ".join(f"{place.who} at {place.words}" for place in places[: standing.MAX_PLACES]),
        evidence=tuple(
            f"{standing.line(case, place, None)}{standing.gates_text(place)}" for place in places[: standing.MAX_LINES]
        ),
        missing=()
        if its.is_certain or its.in_good_order
        else (f"whether {its.place.who} left by an error or in good order: harness watch -- COMMAND tells it",),
        waiting={subject.key: place.words for place in places for subject in place.subjects},
        next=_next(its),
    )


def _next(its: Escape) -> tuple[str, ...]:
    place = _at(standing.users_frames(its.place)[0])
    rounds = f"count the rounds of the loop before {place} on each rank"
    if its.in_good_order:
        return (rounds,)
    if not its.is_certain:
        return (
            f"take the collective at {place} out of the `finally`: after an error the others do not come to it",
            f"if no error took it there: {rounds}",
        )
    out = f"take the collective at {place} out of the `{its.left.by}`: the others do not meet the error"
    mend = f"mend {its.error.error.partition(':')[0]} at {_at(its.error.raised)}" if its.error is not None else ""
    return tuple(filter(None, (mend, out, "or let a failed rank end: torchrun and Ray then end the others")))


def _line(place: standing.Place) -> str:
    return place.words.partition(" ")[0]


def _at(frame: Frame, line: int = 0) -> str:
    return f"{os.path.basename(frame.file)}:{line or frame.line}"
