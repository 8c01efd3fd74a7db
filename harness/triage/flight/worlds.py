"""Which dumps can belong to one job: one dump a rank, and groups that agree about their members."""

from __future__ import annotations

from collections.abc import Mapping

from harness.triage.flight.flight import Flight


def worlds(flights: Mapping[str, Flight]) -> tuple[dict[str, Flight], ...]:
    """The dumps by job, the largest job first. Dumps of one series (file names that differ by the rank) stay together
    unless they contradict each other; flights without a rank are left out.

    Contradictions: the same rank twice, different world sizes, a group of one name whose members overlap and differ.
    """
    series: dict[str, dict[str, Flight]] = {}
    for name, flight in flights.items():
        if flight.rank is not None:
            series.setdefault(flight.series, {})[name] = flight
    found: list[_World] = []
    for dumps in series.values():
        split: list[_World] = []
        for name, flight in dumps.items():
            home = next((world for world in split if world.admits(flight)), None)
            if home is None:
                home = _World()
                split.append(home)
            home.add(name, flight)
        for world in split:
            home = next((other for other in found if other.joins(world)), None)
            if home is None:
                found.append(world)
            else:
                for name, flight in world.flights.items():
                    home.add(name, flight)
    found.sort(key=lambda world: -len(world.flights))
    return tuple(world.flights for world in found)


class _World:
    def __init__(self) -> None:
        self.flights: dict[str, Flight] = {}
        self._ranks: set[int | None] = set()
        self._size: int | None = None
        self._members: dict[str, set[tuple[int, ...]]] = {}  # group name -> member lists

    def admits(self, flight: Flight) -> bool:
        if flight.rank in self._ranks or (flight.world_size and self._size and flight.world_size != self._size):
            return False
        return all(
            group.members in self._members.get(group.name, ())
            or not any(set(group.members) & set(other) for other in self._members.get(group.name, ()))
            for group in flight.groups
            if group.members
        )

    def joins(self, other: _World) -> bool:
        return all(self.admits(flight) for flight in other.flights.values())

    def add(self, name: str, flight: Flight) -> None:
        self.flights[name] = flight
        self._ranks.add(flight.rank)
        self._size = self._size or flight.world_size
        for group in flight.groups:
            if group.members:
                self._members.setdefault(group.name, set()).add(group.members)
