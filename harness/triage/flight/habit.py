"""Whether a rank now does what it has always done after the same operations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import NamedTuple, TypeVar

from harness.triage.flight.flight import Flight
from harness.triage.flight.model import Habit

# How often the same operations must have come before. A rank that departs from its rule once in n times shows four
# repeats without an exception with probability (1 - 1/n)^4. Chosen, as is `MOST`.
LEAST = 4
MOST = 16  # number of earlier runs that are compared
T = TypeVar("T")


class _Run(NamedTuple):
    """A run of equal operations: the number of one of the flight's groups, a name, and how many there are."""

    group: int
    op: str
    length: int

    @property
    def what(self) -> tuple[int, str]:
        return self.group, self.op


def habit(flight: Flight) -> Habit | None:
    """What a rank always did after the operations that it did last; None if nothing is certain.

    The rank's last operation must be pending. As few of the last runs of equal operations as possible are compared,
    until only one thing has ever followed them. None if nothing has, or fewer than `LEAST` times. An operation is its
    name and its group, because sizes may change from batch to batch.
    """
    rows = [row for row, p2p in enumerate(flight.p2p) if not p2p]
    if not rows or flight.done[rows[-1]]:
        return None
    calls = [(flight.group[row], flight.kinds[flight.kind[row]].op) for row in rows]
    runs = [_Run(*what, len(list(repeats))) for what, repeats in groupby(calls)]
    # A last run of one operation may be a new beginning after a run that was cut short. A longer one either goes on or
    # ends.
    continuation = _begun(runs) if runs[-1].length == 1 else _repeated(runs)
    if continuation is None:
        return None
    (group, op), times = continuation
    names = flight.groups[group].name, op, flight.groups[runs[-1].group].name, runs[-1].op
    cut = runs[-1].length == 1 < len(runs) and (group, op) == runs[-2].what
    return Habit(*names, times=times, cut=cut, counts=_counts(flight, calls))


def _begun(runs: list[_Run]) -> tuple[tuple[int, str], int] | None:
    """The rule if the last run has just begun: one more operation of the run before it, if that one was cut short."""
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
    """The rule if the last run goes on: the same operation again, unless the run is longer than it ever was."""
    now, usual_run = runs[-1], _followed(runs, len(runs) - 1, lambda run: run)
    if usual_run is None or usual_run[0].what != now.what:
        return None
    if now.length <= usual_run[0].length:
        return now.what, usual_run[1]
    return _followed([*runs[:-1], usual_run[0], now], len(runs), lambda run: run.what)


def _followed(runs: Sequence[_Run], place: int, of: Callable[[_Run], T]) -> tuple[T, int] | None:
    """What alone has always followed the runs before `place`, and how often; None if nothing has.

    The first run may be the rest of a longer one that the ring lost, so it does not count.
    """
    matching_places = list(range(2, place))
    # Compare one run further back each time, until what followed is unambiguous.
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
