"""Loads and compares the flight recorder dumps of one evidence, world by world.

A trainer and an engine both number their ranks from 0, and are two worlds of one job. So processes are separated by
where they met and by how many they are before their recorders are compared.
"""

from __future__ import annotations

import dataclasses
from datetime import datetime
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Any

from harness.triage.evidence import Evidence, Group, Process
from harness.triage.flight import log_counters
from harness.triage.flight.compare import compare
from harness.triage.flight.flight import Flight, FlightError
from harness.triage.flight.loading import Flights, load_directory, load_each, load_files
from harness.triage.flight.model import Comparison
from probes.limits import RANKS

CLOCK_S = 2.0  # an operation later than its dump, or older than its process, by more than this had another clock
World = tuple[str, str, str, int | None, str]


def comparison_of(evidence: Evidence) -> Comparison | None:
    """Compare all dumps of the evidence; None if there are none. A dump that cannot be read becomes a note."""
    if evidence.source == "dumps":
        return compare(load_directory(evidence.path), strays=True)
    taken_ns = nanoseconds(evidence.taken)
    worlds: dict[World, list[Process]] = {}
    for process in evidence.processes:
        if process.dump:
            worlds.setdefault(_world(process), []).append(process)
    notes: list[str] = []
    flights = _loaded(evidence, taken_ns, notes)
    # Groups that span worlds have ranks of their own, so they are compared apart from the worlds.
    spanning = _spanning(evidence.processes, notes)
    parts = [_world_of(members, flights, frozenset(spanning)) for members in worlds.values()]
    parts += [_span(name, members, flights) for name, members in spanning.items()]
    if evidence.dumps:
        recorded, logged = _loose(evidence, taken_ns)
        memberships = _memberships(evidence.processes)
        beside = log_counters.compared(recorded, logged, memberships) if recorded and logged else None
        parts.append(beside or compare(recorded or logged, memberships, strays=True))
    parts = [part for part in parts if part.ranks or part.missing or part.groups or part.strays]
    return dataclasses.replace(_joined(parts), notes=(*_joined(parts).notes, *notes)) if parts or notes else None


def _world(process: Process) -> World:
    """Where a process met which others. Roles of a PPO job that met nobody are worlds of one rank each."""
    address, port = process.environ.get("MASTER_ADDR", ""), process.environ.get("MASTER_PORT", "")
    return address, port, process.engine, process.world_size, "" if port else process.role


def _loaded(evidence: Evidence, taken_ns: int | None, notes: list[str]) -> dict[str, Flight]:
    """Process key -> its dump."""
    dumped = [process for process in evidence.processes if process.dump]
    read = load_each([(Path(evidence.path) / process.dump, process.rank) for process in dumped])
    flights = {}
    for process, loaded in zip(dumped, read, strict=True):
        if isinstance(loaded, FlightError):
            notes.append(loaded.message)
            continue
        at_ns = taken_ns if process.dump_taken_ns is None else process.dump_taken_ns
        if at_ns is not None and not _one_clock(loaded, at_ns, process.age_s):
            notes.append(f"clock unknown: the wall clock of {process.host} was set, or is another; how long operations "
                         f"of {process.key} have been pending is not known")  # fmt: skip
            at_ns = 0
        loaded = dataclasses.replace(loaded, taken_ns=at_ns)
        flights[process.key] = dataclasses.replace(loaded, name=process.key, series="")
    return flights


def _one_clock(loaded: Flight, taken_ns: int, age_s: float) -> bool:
    """Whether the times in a dump fit the time at which it was taken, and the age of its process if that is known."""
    created = [at for at in loaded.created_ns if at > 0]
    if not taken_ns or not created:
        return bool(taken_ns) or not created
    oldest_s, newest_s = (taken_ns - min(created)) / 1e9, (taken_ns - max(created)) / 1e9
    return newest_s > -CLOCK_S and (age_s <= 0 or oldest_s < age_s + CLOCK_S)


def _spanning(processes: tuple[Process, ...], notes: list[str]) -> dict[str, tuple[int, dict[int, Process]]]:
    """Groups beside torch's register, such as that of a weight sync: name -> (size, {own rank: process}).

    All together have at most `RANKS` members. Each process recorded only its own rank. If two claim the same rank, the
    name does not tell which processes belong together, and the group is left out with a note.
    """
    claims_by_name: dict[str, list[tuple[int, int, Process]]] = {}
    for process in processes:
        for group in process.journal.groups if process.journal else ():
            if group.rank is not None and group.name and 0 <= group.rank < group.world_size:
                claims_by_name.setdefault(group.name, []).append((group.world_size, group.rank, process))
    spans: dict[str, tuple[int, dict[int, Process]]] = {}
    for name, claims in claims_by_name.items():
        if sum(size for size, _ in spans.values()) + claims[0][0] > RANKS:
            notes.append(f"{len(claims_by_name):,} groups span several worlds: {len(spans):,} of them are compared")
            break
        members = {rank: process for _, rank, process in claims}
        if len(members) < len(claims) or len({size for size, _, _ in claims}) > 1:
            notes.append(f"several groups are called {name}: who belongs to which is not known")
        else:
            spans[name] = claims[0][0], members
    return spans


def _span(name: str, span: tuple[int, dict[int, Process]], flights: dict[str, Flight]) -> Comparison:
    """Compare one such group over all its processes, whatever worlds they are of."""
    size, members = span
    its = {
        process.key: flights[process.key].only(name, rank)
        for rank, process in members.items()
        if process.key in flights
    }
    comparison = compare(its, [Group(name, tuple(range(size)), world_size=size)])
    mine = [state for state in comparison.groups if name in (state.group.name, state.group.desc)]
    states = tuple(dataclasses.replace(state, joined=True) for state in mine)
    return Comparison(states, (), versions=comparison.versions, notes=comparison.notes)


def _world_of(members: list[Process], loaded: dict[str, Flight], spanning: frozenset[str]) -> Comparison:
    flights = {
        process.key: loaded[process.key].without(spanning)
        for process in members
        if process.key in loaded and (len(members) > 1 or len(loaded[process.key]))
    }
    comparison = _renamed(compare(flights, _memberships(members)))
    # A process without a rank, such as an engine's end of a weight sync, shows what it did, but not which ranks are
    # missing.
    return (
        comparison
        if any(process.rank is not None for process in members)
        else dataclasses.replace(comparison, missing=())
    )


def _loose(evidence: Evidence, taken_ns: int | None) -> tuple[Flights, Flights]:
    """The dumps of processes that were not seen, and the counters that lines of a log give, by name."""
    of_log = [name for name in evidence.dumps if name.startswith(log_counters.OF_LOG)]
    recorded, logged = (
        load_files({name: Path(evidence.path) / evidence.dumps[name] for name in names})
        for names in ([name for name in evidence.dumps if name not in set(of_log)], of_log)
    )
    for flights in (recorded, logged):
        for name, loaded in flights.items():
            flights[name] = dataclasses.replace(loaded, taken_ns=taken_ns)
    for name, loaded in logged.items():
        logged[name] = log_counters.numbered(loaded)
    return recorded, logged


def _memberships(processes: list[Process] | tuple[Process, ...]) -> tuple[Group, ...]:
    return tuple(group for process in processes if process.journal for group in process.journal.groups)


def _renamed(comparison: Comparison) -> Comparison:
    """The processes of one evidence are of one job, even if their numbering suggests otherwise."""
    return dataclasses.replace(comparison, jobs=1) if comparison.jobs > 1 else comparison


def _joined(parts: list[Comparison]) -> Comparison:
    lists = ("groups", "ranks", "notes", "missing", "absent", "strays")
    joined: dict[str, Any] = {name: tuple(chain.from_iterable(map(attrgetter(name), parts))) for name in lists}
    return Comparison(
        **joined,
        world_size=max((part.world_size or 0 for part in parts), default=0) or None,
        jobs=max((part.jobs for part in parts), default=1),
        versions=tuple(sorted({version for part in parts for version in part.versions})),
        largest=next((part.largest for part in parts if part.largest), ()),
        habits={key: habit for part in parts for key, habit in part.habits.items()},
        contradiction=next((part.contradiction for part in parts if part.contradiction), ""),
        newest_ns=max((part.newest_ns for part in parts), default=0),
    )


def nanoseconds(timestamp: str) -> int | None:
    """The wall clock of an evidence in ns; None if it does not record one."""
    try:
        return int(datetime.fromisoformat(timestamp).timestamp() * 1e9)
    except ValueError:
        return None
