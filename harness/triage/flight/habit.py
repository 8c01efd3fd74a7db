"""What a rank has done so far after the operations that it did last, and whether it did so again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import NamedTuple, TypeVar

from harness.triage.flight.flight import Flight
from harness.triage.flight.model import Habit

# How often the same operations must have gone before. Four repeats in which nothing else followed, from a rank that
# follows a rule with one exception in n, are seen by chance with (1 - 1/n)^4: chosen, as `MOST` is.
LEAST = 4
MOST = 16  # runs that are looked back on
T = TypeVar("T")


class _Run(NamedTuple):
    """Equal operations, one after the other: a number of one of the flight's groups, a name, and how many."""

    group: int
    op: str
    length: int

    @property
    def what(self) -> tuple[int, str]:
        return self.group, self.op


def habit(flight: Flight) -> Habit | None:
    """Of a rank whose last operation is not done: what followed until now whenever the operations before it were as
    they are. The fewest runs of equal operations are looked at after which one thing alone has ever followed; None
    where nothing has, or fewer than `LEAST` times. An operation is its name and its group: sizes may change from batch
    to batch."""
    rows = [row for row, p2p in enumerate(flight.p2p) if not p2p]
    if not rows or flight.done[rows[-1]]:
        return None
    calls = [(flight.group[row], flight.kinds[flight.kind[row]].op) for row in rows]
    runs = [_Run(*what, len(list(repeats))) for what, repeats in groupby(calls)]
    continuation = _begun(runs) if runs[-1].length == 1 else _repeated(runs)
    if continuation is None:
        return None
    (group, op), times = continuation
    names = flight.groups[group].name, op, flight.groups[runs[-1].group].name, runs[-1].op
    cut = runs[-1].length == 1 < len(runs) and (group, op) == runs[-2].what
    return Habit(*names, times=times, cut=cut, counts=_counts(flight, calls))


def _begun(runs: list[_Run]) -> tuple[tuple[int, str], int] | None:
    """What follows as a rule where the last run has just begun: one more of the run before, if that was cut short."""
    if len(runs) < 2:
        return None
    before, usual_run = runs[-2], _followed(runs, len(runs) - 2, lambda run: run)
    if usual_run is not None and usual_run[0].what == before.what and before.length < usual_run[0].length:
        return before.what, usual_run[1]
    return (
        None
        if usual_run is not None and usual_run[0] != before
        else _followed(runs, len(runs) - 1, lambda run: run.what)
    )


def _repeated(runs: list[_Run]) -> tuple[tuple[int, str], int] | None:
    """The same where it goes on: the same operation, unless the run is longer than it ever was."""
    now, usual_run = runs[-1], _followed(runs, len(runs) - 1, lambda run: run)
    if usual_run is None or usual_run[0].what != now.what:
        return None
    if now.length <= usual_run[0].length:
        return now.what, usual_run[1]
    return _followed([*runs[:-1], usual_run[0], now], len(runs), lambda run: run.what)


def _followed(runs: Sequence[_Run], place: int, of: Callable[[_Run], T]) -> tuple[T, int] | None:
    """What alone has followed wherever the runs before were those before `place`, and how often. The first run may be
    what is left of a longer one, and counts for nothing."""
    matching_places = list(range(2, place))
    for back in range(1, min(MOST, place - 1) + 1):
        matching_places = [at for at in matching_places if at > back and runs[at - back] == runs[place - back]]
        if len(matching_places) < LEAST:
            return None
        followed = {of(runs[at]) for at in matching_places}
        if len(followed) == 1:
            return followed.pop(), len(matching_places)
    return None


def _counts(flight: Flight, calls: list[tuple[int, str]]) -> dict[tuple[str, int, str], int]:
    groups = flight.groups
    return {
        (groups[group].desc, len(groups[group].members), op): count for (group, op), count in Counter(calls).items()
    }
