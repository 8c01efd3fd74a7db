"""Loads dumps from disk: one file, or a directory with one file per rank."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path

from harness.triage.flight.flight import Flight, FlightError, NotADump
from harness.triage.flight.worker import file_name
from harness.triage.flight.workers import DEADLINE_S, read_all

_RANKED = re.compile(r"rank[-_]?(\d+)", re.IGNORECASE)
_TRAILING = re.compile(r"(\d+)$")
_SUFFIXES = (".json", ".pkl", ".pickle")


class Flights(dict[str, Flight]):
    """Flights by file name. `notes` say which files were left out, and why."""

    def __init__(self) -> None:
        super().__init__()
        self.notes: tuple[str, ...] = ()


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
            (entry for entry in folder.iterdir() if entry.is_file() and not entry.name.startswith(".")), key=_order
        )
    except OSError as error:
        raise FlightError(f"{folder} cannot be read: {error.strerror or error}") from error
    flights, notes = Flights(), []
    for file, result in zip(files, read_all(files), strict=True):
        if isinstance(result, Flight):
            flights[file_name(file)] = _ranked(result, file_name(file))
        elif isinstance(result, NotADump) or named_rank(file.name)[1] is None:
            notes.append(f"left out: {result.message}")
        else:
            series, rank = named_rank(file.name)
            flights[file_name(file)] = Flight(
                file_name(file), rank, series=series, readable=False, notes=(result.message,)
            )
    _drop_doubles(flights, notes)
    flights.notes = tuple(notes)
    if not flights:
        raise FlightError(
            f"{folder} holds no flight recorder dump" + (f" ({notes[0]})" if notes else ""),
            fix="name the folder that TORCH_FR_DUMP_TEMP_FILE points into",
        )
    return flights


def named_rank(name: str) -> tuple[str, int | None]:
    """Split a file name into what it shares with its neighbours and the rank in it: nccl_trace_rank_3, rank3.json,
    3.pkl."""
    stem = name
    for suffix in _SUFFIXES:
        stem = stem.removesuffix(suffix)
    match = _RANKED.search(stem) or _TRAILING.search(stem)
    if match is None or len(match[1]) > 9:
        return stem, None
    return stem[: match.start(1)], int(match[1])


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


def _drop_doubles(flights: Flights, notes: list[str]) -> None:
    """If a rank of one series has two forms of dump, keep the pickle, because it has frames."""
    first: dict[tuple[str, int], str] = {}
    for name in list(flights):
        flight = flights[name]
        if flight.rank is None:
            continue
        first_name = first.setdefault((flight.series, flight.rank), name)
        if first_name != name and Path(first_name).suffix != Path(name).suffix:
            drop = (
                first_name
                if not flights[first_name].readable or len(flights[first_name].stacks) < len(flight.stacks)
                else name
            )
            first[flight.series, flight.rank] = name if drop == first_name else first_name
            del flights[drop]
            notes.append(f"left out: {drop}, the dump of rank {flight.rank} in another form")
