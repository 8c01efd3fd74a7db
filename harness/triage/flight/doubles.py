"""Which of several dumps of one rank is of the job of the others.

A folder may hold a dump twice, in two forms, from two looks at one process, or beside a dump that another job left
behind. Copies are one dump. Between dumps of two processes the dumps of the other ranks decide, never the names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from harness.triage.evidence import Group
from harness.triage.flight.filenames import named_rank
from harness.triage.flight.flight import Flight
from harness.triage.flight.worlds import CLOCKS_S, joint, main_job, nearest_s, worlds

PEERS = 16  # dumps whose times are compared with a disputed one: those of one job agree about the time
NAMES = 4  # names of files in one sentence


class Choice(NamedTuple):
    """The dumps that are used, and sentences about those that are not."""

    flights: dict[str, Flight]
    left_out: tuple[str, ...]


def listed(names: Sequence[str]) -> str:
    """Names of files in words, the first few of many."""
    return ", ".join(names[:NAMES]) + (f", ... ({len(names)} in all)" if len(names) > NAMES else "")


def distinct(flights: Mapping[str, Flight]) -> Choice:
    """Keep one of equal dumps, with frames if any has them, and of a rank with readable dumps only those."""

    def reading_order(name: str) -> tuple[int, bool]:
        flight = flights[name]
        return -len(flight.stacks), named_rank(name)[1] != flight.rank

    damaged: list[str] = []
    copies: list[str] = []
    for names in _by_rank(flights).values():
        readable = [name for name in names if flights[name].readable]
        damaged += [name for name in names if readable and name not in readable]
        copies += _repeated(
            sorted(readable, key=reading_order),
            lambda name, peer: _facts(flights[name]) == _facts(flights[peer]),
        )
    sentences = [f"{flights[name].notes[0]}, beside a readable dump of its rank" for name in damaged]
    sentences += [f"{listed(copies)}, copies of dumps that are used"] if copies else []
    return _without(flights, {*damaged, *copies}, sentences)


def settled(flights: Mapping[str, Flight]) -> Choice:
    """Decide between different dumps of one rank by the dumps of ranks that have only one.

    A dump that contradicts those is of another job. Where several dumps of a rank fit, or none does, the rank has no
    readable dump. Only between forms is decided if the disputed ranks are as many as those of the job, or what is left
    out is half of a job of its own: nobody knows which job is meant.
    """
    by_rank = _by_rank(flights)
    disputed = {rank: names for rank, names in by_rank.items() if len(names) > 1}
    jobs = worlds({names[0]: flights[names[0]] for names in by_rank.values() if len(names) == 1})
    job = main_job(jobs) if disputed and jobs else None
    if job is None or len(job) <= len(disputed):
        return _of_one_form(flights, disputed.values())
    bounds = _Bounds.of(job)
    fitting = {
        rank: [name for name in names if _fits(name, flights[name], job, bounds)] for rank, names in disputed.items()
    }
    decided = {rank: names[0] for rank, names in fitting.items() if len(names) == 1}
    strays = {rank: [name for name in disputed[rank] if name != winner] for rank, winner in decided.items()}
    foreign = worlds({name: flights[name] for names in strays.values() for name in names})
    if main_job((job, *foreign)) is None:
        return _of_one_form(flights, disputed.values())
    chosen = {name: flight for name, flight in flights.items() if flight.rank not in disputed}
    chosen |= {winner: flights[winner] for winner in decided.values()}
    chosen |= {names[0]: _undecided(rank, names, bool(fitting[rank]), flights)
               for rank, names in disputed.items() if rank not in decided}  # fmt: skip
    return Choice(
        chosen,
        tuple(
            f"left out: {listed(names)}, not of the job of the others; {decided[rank]} is"
            for rank, names in strays.items()
        ),
    )


def _undecided(rank: int, names: Sequence[str], fitting: bool, flights: Mapping[str, Flight]) -> Flight:
    """A dump that cannot be read, in place of several of a rank. `fitting`: whether some fit the other ranks' dumps."""
    why = "nothing in them says which is of the job of the others" if fitting else "none fits the others"
    note = f"{listed(names)} are all of rank {rank}, and {why}"
    return Flight(names[0], rank, series=flights[names[0]].series, readable=False, notes=(note,))


def _of_one_form(flights: Mapping[str, Flight], rivals: Iterable[Sequence[str]]) -> Choice:
    """Of two forms in which processes were dumped at two moments, keep the one that more ranks have, or with frames."""
    sizes = Counter((flight.series, Path(name).suffix) for name, flight in flights.items())

    def completeness(name: str) -> tuple[int, int]:
        return sizes[flights[name].series, Path(name).suffix], len(flights[name].stacks)

    def is_other_form(name: str, peer: str) -> bool:
        mine, its = flights[name], flights[peer]
        return mine.series == its.series and Path(name).suffix != Path(peer).suffix and _is_one_process(mine, its)

    looks = [
        name for names in rivals for name in _repeated(sorted(names, key=completeness, reverse=True), is_other_form)
    ]
    sentences = [f"{listed(looks)}, another look at processes whose dumps are used"] if looks else []
    return _without(flights, set(looks), sentences)


def _without(flights: Mapping[str, Flight], names: set[str], sentences: Iterable[str]) -> Choice:
    kept = {name: flight for name, flight in flights.items() if name not in names}
    return Choice(kept, tuple(f"left out: {sentence}" for sentence in sentences))


def _repeated(names: Iterable[str], is_same: Callable[[str, str], bool]) -> list[str]:
    """The names that are the same as one before them."""
    first: list[str] = []
    repeated: list[str] = []
    for name in names:
        (repeated if any(is_same(name, peer) for peer in first) else first).append(name)
    return repeated


def _by_rank(flights: Mapping[str, Flight]) -> dict[int, list[str]]:
    names_by_rank: dict[int, list[str]] = {}
    for name, flight in flights.items():
        if flight.rank is not None:
            names_by_rank.setdefault(flight.rank, []).append(name)
    return names_by_rank


def _facts(flight: Flight) -> tuple[object, ...]:
    """Everything that a comparison reads of a dump, but for frames."""
    return (flight.version, flight.library, flight.backend, flight.mentioned, flight.groups, flight.kinds,
            flight.record, flight.group, flight.seq, flight.kind, flight.created_ns, flight.done, flight.started,
            flight.p2p, flight.status)  # fmt: skip


def _is_one_process(flight: Flight, peer: Flight) -> bool:
    """Whether two dumps are of one process: what both hold was enqueued at the same nanosecond."""
    mine, its = (dict(zip(dump.record, dump.created_ns, strict=True)) for dump in (flight, peer))
    shared = mine.keys() & its.keys()
    return bool(shared) and all(mine[record] == its[record] > 0 for record in shared)


def _fits(name: str, flight: Flight, job: Mapping[str, Flight], bounds: _Bounds) -> bool:
    """Whether nothing in a dump contradicts the dumps of the other ranks."""
    peers = [peer for peer in job.values() if len(peer)]
    formats = {_format(peer) for peer in peers}
    if len(formats) == 1 and len(flight) and _format(flight) not in formats:
        return False
    if len(worlds({**job, name: flight})) > 1:
        return False
    gaps_s = (nearest_s(flight, peer) for peer in peers)
    near = list(islice((gap_s for gap_s in gaps_s if gap_s is not None), PEERS))
    return (not near or min(near) <= CLOCKS_S) and bounds.admit(flight)


def _format(flight: Flight) -> tuple[str, str, str]:
    return flight.version, flight.library, flight.backend


@dataclass
class _Bounds:
    """What the dumps of one moment say of a further rank of their job, by group.

    A rank has enqueued every operation that ended for a peer and ends for no rank before all have come, and such an
    operation of its own was enqueued by every peer.
    """

    descriptions: dict[tuple[str, tuple[int, ...]], str] = field(default_factory=dict)  # (name, members) -> description
    least: dict[Group, int] = field(default_factory=dict)  # that a rank has enqueued
    most: dict[Group, int] = field(default_factory=dict)  # that has ended for a rank

    @classmethod
    def of(cls, job: Mapping[str, Flight]) -> _Bounds:
        bounds = cls()
        for flight in job.values():
            bounds.descriptions |= {(group.name, group.members): group.desc for group in flight.groups}
            for group, (enqueued, ended) in _reached(flight).items():
                bounds.least[group] = max(ended, bounds.least.get(group, ended))
                bounds.most[group] = min(enqueued, bounds.most.get(group, enqueued))
        return bounds

    def admit(self, flight: Flight) -> bool:
        if any(self.descriptions.get((group.name, group.members), group.desc) != group.desc for group in flight.groups):
            return False
        return all(
            enqueued >= self.least[group] and ended <= self.most[group]
            for group, (enqueued, ended) in _reached(flight).items()
            # If the peers' own dumps are of different moments, they bound nothing.
            if group in self.least and self.least[group] <= self.most[group]
        )


def _reached(flight: Flight) -> dict[Group, tuple[int, int]]:
    """Group -> the numbers of the last operation enqueued, and of the last that ended for every rank or none."""
    standing = flight.standing()
    reached: dict[Group, tuple[int, int]] = {}
    for number, group in enumerate(flight.groups):
        part = flight.part(number)
        if len(part.seqs):
            status = standing.get(group.name)
            enqueued = max(part.seqs[-1], status.enqueued if status else -1)
            reached[group] = enqueued, joint(part, part.done.rfind(1))
    return reached
