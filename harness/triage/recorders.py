"""The flight recorder dumps of one evidence, loaded and compared, world by world.

A trainer and an engine number their ranks alike, from 0, and are two worlds of one job: processes are told apart by
where they met and how many they are before their recorders are compared.
"""

from __future__ import annotations

import dataclasses
from datetime import datetime
from pathlib import Path

from harness.triage import flight
from harness.triage.evidence import Evidence, Group, Process
from harness.triage.flight.model import Comparison, GroupState

World = tuple[str, str, str, int | None, str]


def comparison_of(evidence: Evidence) -> Comparison | None:
    """All dumps of the evidence side by side; None where there is none. A dump that cannot be read is a note."""
    if evidence.source == "dumps":
        return flight.compare(flight.load_directory(evidence.path))
    taken_ns = _taken_ns(evidence.taken)
    worlds: dict[World, list[Process]] = {}
    for process in evidence.processes:
        if process.dump:
            worlds.setdefault(_world(process), []).append(process)
    notes: list[str] = []
    parts = [_world_of(evidence, members, taken_ns, notes) for members in worlds.values()]
    if evidence.dumps:
        parts.append(flight.compare(_loose(evidence, taken_ns, notes), _memberships(evidence.processes)))
    parts = [part for part in parts if part.ranks or part.missing]
    return dataclasses.replace(_joined(parts), notes=(*_joined(parts).notes, *notes)) if parts or notes else None


def _world(process: Process) -> World:
    """Where it met whom. The roles of a PPO job that met nobody are worlds of one rank each."""
    address, port = process.environ.get("MASTER_ADDR", ""), process.environ.get("MASTER_PORT", "")
    return address, port, process.engine, process.world_size, "" if port else process.role


def _world_of(evidence: Evidence, members: list[Process], taken_ns: int | None, notes: list[str]) -> Comparison:
    flights = {}
    for process in members:
        try:
            loaded = flight.load(Path(evidence.path) / process.dump, rank=process.rank, taken_ns=taken_ns)
        except flight.FlightError as error:
            notes.append(error.message)
            continue
        if len(members) > 1 or len(loaded):
            flights[process.key] = dataclasses.replace(loaded, name=process.key, series="")
    found = _renamed(flight.compare(flights, _memberships(members)))
    # A process without a rank, such as an engine's end of a weight sync, says what it did, not who was missing.
    return found if any(process.rank is not None for process in members) else dataclasses.replace(found, missing=())


def _loose(evidence: Evidence, taken_ns: int | None, notes: list[str]) -> dict[str, flight.Flight]:
    flights = {}
    for name, path in evidence.dumps.items():
        try:
            flights[name] = dataclasses.replace(flight.load(Path(evidence.path) / path, taken_ns=taken_ns), name=name)
        except flight.FlightError as error:
            notes.append(error.message)
    return flights


def _memberships(processes: list[Process] | tuple[Process, ...]) -> tuple[Group, ...]:
    return tuple(group for process in processes if process.journal for group in process.journal.groups)


def _renamed(comparison: Comparison) -> Comparison:
    """Our own processes are of one job, even where their numbering says otherwise."""
    return dataclasses.replace(comparison, jobs=1) if comparison.jobs > 1 else comparison


def _joined(parts: list[Comparison]) -> Comparison:
    groups: tuple[GroupState, ...] = tuple(group for part in parts for group in part.groups)
    return Comparison(
        groups,
        tuple(rank for part in parts for rank in part.ranks),
        max((part.world_size or 0 for part in parts), default=0) or None,
        max((part.jobs for part in parts), default=1),
        tuple(sorted({version for part in parts for version in part.versions})),
        tuple(note for part in parts for note in part.notes),
        tuple(item for part in parts for item in part.missing),
        tuple(rank for part in parts for rank in part.absent),
    )


def _taken_ns(taken: str) -> int | None:
    try:
        return int(datetime.fromisoformat(taken).timestamp() * 1e9)
    except ValueError:
        return None
