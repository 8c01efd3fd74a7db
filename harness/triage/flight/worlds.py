"""Which dumps can belong to one job: one dump per rank, and groups that agree about their members."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.triage.evidence import Group
from harness.triage.flight.filenames import named_rank
from harness.triage.flight.flight import Flight, Part
from harness.triage.flight.mismatches import DEFAULT

CLOCKS_S = 60.0  # how far the clocks of two hosts may differ
TIMEOUT_S = 3600.0  # assumed timeout of an operation whose dump does not say it
TOGETHER = 16  # mutual operations: no rank enqueues the last of so many before its peer enqueues the first
# Jobs that a dump is compared with; one that fits none of them is a job of its own. So dumps that all contradict each
# other cost no more than their number times this.
MOST_JOBS = 100
MUTUAL = ("all_", "_all", "barrier", "reduce_scatter", "_reduce_scatter")


def worlds(flights: Mapping[str, Flight]) -> tuple[dict[str, Flight], ...]:
    """Split dumps by job, the largest job first. Flights without a rank are left out.

    Dumps of one series (file names that differ only by the rank) stay together unless they contradict each other.
    Contradictions are: the same rank twice, different world sizes, a group name with members that overlap and differ,
    and operations with equal numbers that were enqueued further apart than in any one run (`apart_s`). Of two dumps of
    one rank, the one with that rank in its name comes first.
    """
    series: dict[str, dict[str, Flight]] = {}
    for name, flight in sorted(flights.items(), key=lambda item: named_rank(item[0])[1] != item[1].rank):
        if flight.rank is not None:
            series.setdefault(flight.series, {})[name] = flight
    job_worlds: list[_World] = []
    for dumps in series.values():
        # First split each series by its contradictions, then join worlds of different series that fit together.
        split: list[_World] = []
        for name, flight in dumps.items():
            home = next((world for world in split[:MOST_JOBS] if world.admits(flight)), None)
            if home is None:
                home = _World()
                split.append(home)
            home.add(name, flight)
        for world in split:
            home = next((job_world for job_world in job_worlds[:MOST_JOBS] if job_world.joins(world)), None)
            if home is None:
                job_worlds.append(world)
            else:
                for name, flight in world.flights.items():
                    home.add(name, flight)
    job_worlds.sort(key=lambda world: -len(world.flights))
    return tuple(world.flights for world in job_worlds)


def main_job(jobs: Sequence[Mapping[str, Flight]]) -> Mapping[str, Flight] | None:
    """Return the job to judge where all other dumps are strays; None where they may be of jobs of their own.

    It has more dumps than all others together, and the others have less than half of the ranks of their own world.
    """
    first, *others = jobs
    if len(first) <= sum(map(len, others)) or not all(2 * len(job) < _ranks(job) for job in others):
        return None
    return first


def _ranks(job: Mapping[str, Flight]) -> int:
    """Return how many ranks a job has, as far as its dumps say; 0 where none does."""
    flights = job.values()
    sizes = [flight.world_size or 0 for flight in flights]
    return max([*sizes, len({rank for flight in flights for rank in (*flight.mentioned, *_members(flight))})])


def _members(flight: Flight) -> set[int]:
    return {rank for group in flight.groups for rank in group.members}


def apart_s(flight: Flight, peer: Flight) -> float:
    """Seconds between two dumps of different runs, by a group that both have; 0 if they may be of one run.

    In one run no rank waits for a peer longer than the operation's timeout. And of many mutual operations (in which
    every rank waits for every rank), no rank enqueues the last before its peer enqueues the first. A dump taken from a
    live process (`taken_ns`) is of the current run. Only files on disk are compared, since TORCH_FR_DUMP_TEMP_FILE is
    often the same for the next job.
    """
    if flight.taken_ns is not None or peer.taken_ns is not None:
        return 0.0
    for number, group in enumerate(flight.groups):
        its = next((place for place, peer_group in enumerate(peer.groups) if _is_same_group(group, peer_group)), None)
        if its is not None and (gap_s := _apart_s(flight, number, peer, its)) is not None:
            return gap_s
    return 0.0


def nearest_s(flight: Flight, peer: Flight) -> float | None:
    """Seconds between the nearest two operations of equal number in a group that both dumps have; None without any."""
    gaps: list[float] = []
    for number, group in enumerate(flight.groups):
        its = next((place for place, peer_group in enumerate(peer.groups) if _is_same_group(group, peer_group)), None)
        mine, theirs = _completed_at(flight, number), _completed_at(peer, its) if its is not None else {}
        gaps += [abs(mine[seq] - theirs[seq]) for seq in mine.keys() & theirs.keys()]
    return min(gaps, default=None)


def joint(part: Part, finished: int) -> int:
    """Seq of the last finished operation, up to position `finished`, in which every rank waits for every rank; -1
    without one."""
    while finished >= 0:
        if part.done[finished] and part.table[part.kinds[finished]].op.startswith(MUTUAL):
            return part.seqs[finished]
        finished -= 1
    return -1


def _is_same_group(group: Group, peer: Group) -> bool:
    has_same_identity = (group.name, group.desc, group.backend) == (peer.name, peer.desc, peer.backend)
    return has_same_identity and group.members == peer.members and (bool(group.members) or group.desc == DEFAULT)


def _apart_s(flight: Flight, group: int, peer: Flight, its: int) -> float | None:
    """The same by one group; None if that group says nothing, because some dump has no completed operation of it
    with a time."""
    mine, theirs = _completed_at(flight, group), _completed_at(peer, its)
    if not mine or not theirs:
        return None
    allowed = max(flight.timeout_ms[row] for row in flight.part(group).rows) / 1000
    allowed = (allowed if allowed > 0 else TIMEOUT_S) + CLOCKS_S
    shared_seqs = [seq for seq in mine if seq in theirs]
    if not shared_seqs:  # one ring ends before the other begins
        first, second = (mine, theirs) if max(mine) < min(theirs) else (theirs, mine)
        gap = abs(second[min(second)] - first[max(first)])
        return gap if gap > allowed else 0.0
    # In one run equal numbers are enqueued within the timeout of each other, whatever the ranks' speed.
    nearest = min(abs(mine[seq] - theirs[seq]) for seq in shared_seqs)
    disjoint = 0.0
    if flight.backend == "gloo":  # on NCCL a host may run far ahead of its device
        part = flight.part(group)
        mutual = [seq for seq in shared_seqs if (kind := part.at(seq)) is not None and kind.op.startswith(MUTUAL)]
        if len(mutual) >= TOGETHER:
            here, peer_times = ([at[seq] for seq in mutual] for at in (mine, theirs))
            disjoint = max(min(here) - max(peer_times), min(peer_times) - max(here))
    return nearest if nearest > allowed or disjoint > CLOCKS_S else 0.0


def _completed_at(flight: Flight, group: int) -> dict[int, float]:
    """Sequence number -> the time when it was enqueued, in seconds, for completed operations with a time."""
    part = flight.part(group)
    rows = zip(part.seqs, part.rows, part.done, strict=True)
    return {seq: at / 1e9 for seq, row, done in rows if done and (at := flight.created_ns[row]) > 0}


class _World:
    def __init__(self) -> None:
        self.flights: dict[str, Flight] = {}
        self._ranks: set[int | None] = set()
        self._size: int | None = None
        self._sample: list[Flight] = []  # one dump with operations stands for all: those admitted are of its run
        self._members: dict[str, set[tuple[int, ...]]] = {}  # group name -> member lists

    def admits(self, flight: Flight) -> bool:
        if flight.rank in self._ranks or (flight.world_size and self._size and flight.world_size != self._size):
            return False
        if any(apart_s(sampled_flight, flight) for sampled_flight in self._sample):
            return False
        return all(
            group.members in self._members.get(group.name, ())
            or not any(set(group.members) & set(known_members) for known_members in self._members.get(group.name, ()))
            for group in flight.groups
            if group.members
        )

    def joins(self, world: _World) -> bool:
        return all(self.admits(flight) for flight in world.flights.values())

    def add(self, name: str, flight: Flight) -> None:
        self.flights[name] = flight
        if not self._sample and len(flight):
            self._sample = [flight]
        self._ranks.add(flight.rank)
        self._size = self._size or flight.world_size
        for group in flight.groups:
            if group.members:
                self._members.setdefault(group.name, set()).add(group.members)
