"""Loads dumps from disk: one file, or a directory with one file per rank."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.triage.flight.doubles import distinct
from harness.triage.flight.filenames import named_rank, says_rank
from harness.triage.flight.flight import Flight, FlightError, NotADump
from harness.triage.flight.worker import file_name
from harness.triage.flight.workers import DEADLINE_S, read_all


class Flights(dict[str, Flight]):
    """Flights by file name. `notes` are about files that are no dumps, `left_out` about dumps that are not used."""

    def __init__(self, flights: Mapping[str, Flight] | None = None) -> None:
        super().__init__(flights or {})
        self.notes: tuple[str, ...] = ()
        self.left_out: tuple[str, ...] = ()


def load(
    path: Path | str,
    *,
    rank: int | None = None,
    world_size: int | None = None,
    series: str | None = None,
    taken_ns: int | None = None,
    deadline_s: float = DEADLINE_S,
) -> Flight:
    """Load one dump: NCCL's pickle or JSON, or gloo's JSON. Raises FlightError.

    `rank`, `world_size`: if the caller knows them; otherwise the file name and the dump's groups may say them (else
    None). `series`: what tells dumps of this job or world from those of others. `taken_ns`: wall clock when the dump
    was taken; without it operations have no age.
    """
    [flight] = load_each([(Path(path), rank)], deadline_s=deadline_s)
    if isinstance(flight, FlightError):
        raise flight
    return dataclasses.replace(
        flight,
        world_size=flight.world_size if world_size is None else world_size,
        series=flight.series if series is None else series,
        taken_ns=taken_ns,
    )


def load_each(
    files: Sequence[tuple[Path, int | None]], *, deadline_s: float = DEADLINE_S
) -> list[Flight | FlightError]:
    """Load many dumps in parallel, each with its rank if that is known. The results are in the order given."""
    results = read_all([path for path, _ in files], deadline_s=deadline_s)
    return [
        result if isinstance(result, FlightError)
        else _ranked(result, path.name) if rank is None
        else dataclasses.replace(result, rank=rank)
        for (path, rank), result in zip(files, results, strict=True)
    ]  # fmt: skip


def load_directory(path: Path | str) -> Flights:
    """Load every dump in a directory, by file name. Subfolders are not entered.

    An unreadable file with a rank in its name stays, with `readable` False, so that its rank is not taken for silent.
    Raises FlightError if there is no such directory, or no dump in it.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise FlightError(f"{folder} is {'no directory' if folder.exists() else 'not there'}")
    try:
        files = sorted(
            (entry for entry in folder.iterdir() if not entry.is_dir() and not entry.name.startswith(".")), key=_order
        )
    except OSError as error:
        raise FlightError(f"{folder} cannot be read: {error.strerror or error}") from error
    flights = load_files({file_name(file): file for file in files})
    if not flights:
        reasons = (*flights.left_out, *flights.notes)
        raise FlightError(
            f"{folder} holds no flight recorder dump" + (f" ({reasons[0]})" if reasons else ""),
            fix="name the folder that TORCH_FR_DUMP_TEMP_FILE points into",
        )
    return flights


def load_files(files: Mapping[str, Path]) -> Flights:
    """Load dumps by name, each process once. An unreadable file with a rank in its name stays, as in a directory."""
    flights: dict[str, Flight] = {}
    notes: list[str] = []
    left_out: list[str] = []
    for (name, file), result in zip(files.items(), read_all(list(files.values())), strict=True):
        series, rank = named_rank(file.name)
        if isinstance(result, Flight):
            flights[name] = dataclasses.replace(_ranked(result, file_name(file)), name=name)
        elif isinstance(result, NotADump):
            notes.append(f"left out: {result.message}")
        elif rank is None or (rank >= len(files) and not says_rank(file.name)):  # it may be a pid
            left_out.append(f"left out: {result.message}")
        else:
            flights[name] = Flight(name, rank, series=series, readable=False, notes=(result.message,))
    choice = distinct(flights)
    loaded = Flights(choice.flights)
    loaded.notes, loaded.left_out = tuple(notes), (*left_out, *choice.left_out)
    return loaded


def _order(path: Path) -> tuple[str, int, str]:
    series, rank = named_rank(path.name)
    return series, -1 if rank is None else rank, path.name


def _ranked(flight: Flight, name: str) -> Flight:
    """Set the rank from the file name, unless the dump's own groups exclude that number (a pid, a date). Without
    one, the only member that all groups share is the rank."""
    series, rank = named_rank(name)
    members = [set(group.members) for group in flight.groups if group.members]
    common = set.intersection(*members) if members else set()
    if rank is not None and members and rank not in common:
        note = f"{name}: {rank} is in its name, but no member of the dump's groups: not taken for its rank"
        flight, rank = dataclasses.replace(flight, notes=(*flight.notes, note)), None
    if rank is None and len(common) == 1:
        [rank] = common
    return dataclasses.replace(flight, rank=rank, series=series)
