"""Tells the incidents of one log apart, by the times at which operations were given up and had begun.

A job that hung, was started again and hung again may write all of it to one log. Ranks of one incident may give up
minutes apart, too: each operation has its own limit, and a rank may come late. So a gap alone proves nothing. What
began only after others had been given up, by a process that gave one up itself or much later, is of a job that was
started again.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from harness.triage.evidence import LogError
from harness.triage.pasted.errors import stamp_of

# Seconds between two incidents of one job at least: no job fails, starts again and times out within less.
RESTART_S = 60.0


def seconds(stamp: tuple[int, int, float]) -> float:
    """A month, a day and seconds as seconds from the beginning of the year, as if each month had 31 days."""
    return (stamp[0] * 31 + stamp[1]) * 86_400 + stamp[2]


def seconds_of(line: str) -> float | None:
    """The time of a line in seconds from the beginning of its year; None if it says none."""
    stamp = stamp_of(line)
    return seconds(stamp) if stamp is not None else None


@dataclass(frozen=True)
class Place:
    """Where and when a line was written. at_s: from the beginning of the year; None if the line does not say."""

    file: str
    number: int
    at_s: float | None


NOWHERE = Place("", 0, None)


@dataclass(frozen=True)
class Entry:
    """What a line says of a rank in a group. operation: that was given up; None in lines of counters. ran_s: for how
    long it had run; infinite if the line does not say."""

    at_s: float
    rank: int
    group: Hashable
    operation: Hashable | None = None
    ran_s: float = 0.0


@dataclass
class _Incident:
    """Entries that no time tells apart. operations: (group, operation) -> ranks that gave it up."""

    end_s: float
    ranks: set[int] = field(default_factory=set)
    operations: dict[tuple[Hashable, Hashable], set[int]] = field(default_factory=dict)
    first_began_s: float = float("inf")
    waited_s: float = 0.0

    def add(self, entry: Entry) -> None:
        self.end_s = entry.at_s
        self.ranks.add(entry.rank)
        if entry.operation is not None:
            self.operations.setdefault((entry.group, entry.operation), set()).add(entry.rank)
            self.first_began_s = min(self.first_began_s, entry.at_s - entry.ran_s)
            self.waited_s = max(self.waited_s, entry.ran_s)

    def merge(self, later: _Incident) -> None:
        self.end_s = later.end_s
        self.ranks |= later.ranks
        for operation, ranks in later.operations.items():
            self.operations.setdefault(operation, set()).update(ranks)
        self.first_began_s = min(self.first_began_s, later.first_began_s)
        self.waited_s = max(self.waited_s, later.waited_s)

    def is_before_restart(self, later: _Incident) -> bool:
        """Whether the job was started again between this incident and a later one."""
        if not (self.operations and later.operations):
            return False
        if any(not ranks & self.operations.get(operation, ranks) for operation, ranks in later.operations.items()):
            return False  # these ranks came late to an operation that others had given up
        gave_up = set().union(*self.operations.values())
        again = not gave_up.isdisjoint(later.ranks)
        return later.first_began_s - self.end_s >= RESTART_S + (0.0 if again else self.waited_s)


def ends_of_earlier(entries: Iterable[Entry]) -> list[float]:
    """When each incident before the last one ended, in seconds from the beginning of the year."""
    incidents: list[_Incident] = []
    for part in _parts(sorted(entries, key=lambda entry: entry.at_s)):
        if incidents and not incidents[-1].is_before_restart(part):
            incidents[-1].merge(part)
        else:
            incidents.append(part)
    return [incident.end_s for incident in incidents[:-1]]


def _parts(entries: Sequence[Entry]) -> Iterator[_Incident]:
    """The entries, in the order of their times, cut where none was written for so long as a restart takes."""
    part: _Incident | None = None
    for entry in entries:
        if part is not None and entry.at_s - part.end_s >= RESTART_S:
            yield part
            part = None
        part = part or _Incident(entry.at_s)
        part.add(entry)
    if part is not None:
        yield part


def is_earlier(error: LogError, end_s: float, last_lines: Mapping[str, int]) -> bool:
    """Whether an error is of an earlier incident than the last one.

    `end_s`: when the earlier ones ended. `last_lines`: file -> number of the last line about one of them: what stands
    above it was written before.
    """
    if error.at is not None:
        return seconds(error.at) < end_s + RESTART_S
    return error.line < last_lines.get(error.file, 0)
