"""Compares the recorders of all ranks: where each rank stands in each group, and the first operations that disagree.

Missing evidence proves nothing. A rank without a dump is absent, a rank whose ring has overflowed is unsure, and a
group whose members nobody recorded is compared among the ranks that mention it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from harness.triage.evidence import Group
from harness.triage.flight.doubles import listed, settled
from harness.triage.flight.flight import COUNTED, Flight, Part, Status
from harness.triage.flight.habit import habit
from harness.triage.flight.loading import Flights
from harness.triage.flight.mismatches import DEFAULT, against_siblings, mismatches, named
from harness.triage.flight.model import Collective, Comparison, GroupState, Mismatch, RankState
from harness.triage.flight.worlds import apart_s, joint, main_job, worlds

MOST_JOBS = 8  # that are named
NCCL = "nccl"  # the backend of a dump without operations


def compare(
    flights: Mapping[str, Flight] | Iterable[Flight], memberships: Iterable[Group] = (), *, strays: bool = False
) -> Comparison:
    """Compare the ranks of one job. Flights without a rank are left out.

    If `flights` is a mapping, its keys name the flights, also in `RankState.key`. `memberships`: groups as recorded
    when they were created, for dumps without members (gloo's). Dumps of several jobs are not compared: `jobs` counts
    the jobs, and `worlds` separates them. With `strays`, a few dumps beside those of one job are left out
    (`Comparison.strays`), and of several dumps of one rank the one that fits the others is used.
    """
    flights_by_name = _keyed(flights)
    recorded_groups = tuple(dict.fromkeys(memberships))
    versions = tuple(sorted({flight.version for flight in flights_by_name.values() if flight.version}))
    notes = _reading_notes(flights, flights_by_name, versions)
    left_out = list(flights.left_out) if isinstance(flights, Flights) else []
    if strays:
        left_out += _without_rank(flights_by_name.values())
        flights_by_name, doubles = settled(flights_by_name)
        left_out += doubles
    jobs: Sequence[Mapping[str, Flight]] = worlds(flights_by_name)
    if strays and len(jobs) > 1 and (job := main_job(jobs)) is not None:
        left_out += [f"left out: {listed(list(stray))}, not of the job of the others{_when(job, stray)}"
                     for stray in jobs if stray is not job]  # fmt: skip
        flights_by_name, jobs = dict(job), (job,)
    if len(jobs) > 1:
        return _several_jobs(jobs, flights_by_name, versions, notes)
    readable = {
        flight.rank: flight for flight in flights_by_name.values() if flight.rank is not None and flight.readable
    }
    standing = {rank: statuses for rank, flight in readable.items() if (statuses := flight.standing())}
    # A job without a single operation has its recorder off; its empty groups would look like silent ranks.
    silenced = not standing and not any(len(flight) for flight in readable.values())
    parts = {} if silenced else _parts(readable, recorded_groups, standing, notes)
    # The default group's members follow from the world size, and ranks that should exist from all groups together.
    size = _world_size(flights_by_name.values(), recorded_groups, parts)
    parts = {_completed(group, size): occurrences for group, occurrences in parts.items()}
    damaged, beyond = _damaged(flights_by_name.values(), size)
    left_out += beyond
    of_job = [flight for flight in flights_by_name.values() if flight.readable or flight.rank in damaged]
    absent = sorted(_expected_ranks(of_job, parts, size) - set(readable))
    missing = [_missing(rank, damaged.get(rank)) for rank in absent]
    unread = [part for flight in flights_by_name.values() for part in flight.unread]
    if silenced and readable:
        missing.append("no operations in any dump: the recorder is off (TORCH_FR_BUFFER_SIZE=0), or nothing was run")
    states = _states(parts, readable, absent, standing, notes)
    return Comparison(
        groups=states,
        ranks=tuple(sorted(readable)),
        world_size=size,
        jobs=1,
        versions=versions,
        notes=tuple(notes),
        missing=(*missing, *unread, *_without_members(states)),
        absent=tuple(absent),
        strays=tuple(left_out),
        habits={flight.name: its for flight in readable.values() if (its := habit(flight)) is not None},
        newest_ns=max((flight.created_ns[-1] for flight in readable.values() if len(flight)), default=0),
    )


def _reading_notes(
    flights: Mapping[str, Flight] | Iterable[Flight], flights_by_name: Mapping[str, Flight], versions: Sequence[str]
) -> list[str]:
    """Notes from reading the dumps, and notes about what cannot be compared."""
    notes = list(flights.notes) if isinstance(flights, Flights) else []
    for flight in flights_by_name.values():
        notes += flight.notes
    notes += _without_rank(flights_by_name.values())
    if len(versions) > 1:
        notes.append(f"dump formats differ ({', '.join(versions)}): not every rank runs the same torch")
    return notes


def _without_rank(flights: Iterable[Flight]) -> list[str]:
    return [
        f"left out: {'; '.join(flight.notes) or f'{flight.name}: its rank is not known'}"
        for flight in flights
        if flight.rank is None
    ]


def _several_jobs(
    jobs: Sequence[Mapping[str, Flight]], flights_by_name: Mapping[str, Flight], versions: tuple[str, ...],
    notes: list[str],
) -> Comparison:  # fmt: skip
    """The comparison of dumps of several jobs: it only says which dump belongs to which job."""
    named_jobs = [f"job {number} of {len(jobs)}: {listed(list(job))}{_when(jobs[0], job)}"
                  for number, job in enumerate(jobs, 1)]  # fmt: skip
    ranks = sorted({flight.rank for flight in flights_by_name.values() if flight.rank is not None})
    return Comparison(
        (),
        tuple(ranks),
        jobs=len(jobs),
        versions=versions,
        notes=(*notes, *named_jobs),
        missing=tuple(named_jobs[:MOST_JOBS]),
        largest=tuple(jobs[0]),
    )


def _expected_ranks(flights: Iterable[Flight], groups: Iterable[Group], size: int | None) -> set[int]:
    """The ranks that the job should have: those of its world, of any group, of unreadable dumps, and those that a
    dump mentions."""
    ranks = set(range(size or 0)) | {rank for group in groups for rank in group.members}
    for flight in flights:
        if flight.rank is not None:
            ranks |= {flight.rank, *flight.mentioned}
    return ranks


def _states(
    parts: Mapping[Group, Mapping[int, tuple[Flight, int]]], readable: Mapping[int, Flight], absent: Sequence[int],
    standing: Mapping[int, Mapping[str, Status]], notes: list[str],
) -> tuple[GroupState, ...]:  # fmt: skip
    shares = {
        group: {rank: flight.part(number) for rank, (flight, number) in sorted(occurrences.items())}
        for group, occurrences in sorted(parts.items(), key=_order)
    }
    states = [_state(group, by_rank, readable, absent, standing, notes) for group, by_rank in shares.items()]
    return tuple(against_siblings(state, shares) for state in states)


def _without_members(states: Iterable[GroupState]) -> list[str]:
    return [
        f"members of group {named(state.group).removeprefix('group ')} were not recorded: "
        f"{_only(state.ranks)} seen in it"
        for state in states
        if not state.group.members
    ]


def _when(first: Mapping[str, Flight], world: Mapping[str, Flight]) -> str:
    """How many seconds a job is from the largest one, in words, if that is what tells them apart; else empty."""
    pairs = ((flight, peer) for flight in first.values() if len(flight) for peer in world.values() if len(peer))
    main_flight, job_flight = next(pairs, (None, None))
    seconds = (
        apart_s(main_flight, job_flight)
        if main_flight is not None and job_flight is not None and world is not first
        else 0.0
    )
    if not seconds:
        return ""
    distance = f"{seconds / 3600:.1f} hours" if seconds >= 7200 else f"{seconds:.0f} s"
    return (
        f" (its operations are {distance} away from those of equal number in {main_flight.name if main_flight else ''})"
    )


def _keyed(flights: Mapping[str, Flight] | Iterable[Flight]) -> dict[str, Flight]:
    """Flights by name. A mapping's key becomes the flight's name, and so `RankState.key`."""
    if not isinstance(flights, Mapping):
        by_name: dict[str, Flight] = {}
        for flight in flights:  # two flights of one name are still two dumps
            by_name[flight.name if flight.name not in by_name else f"{flight.name} ({len(by_name) + 1})"] = flight
        return by_name
    return {key: flight if flight.name == key else replace(flight, name=key) for key, flight in flights.items()}


def laggards(state: GroupState) -> frozenset[int]:
    """Ranks whose last completed operation is behind that of a peer: they stall on the device."""
    furthest = max((rank_state.completed for rank_state in state.ranks.values()), default=-1)
    return frozenset(rank for rank, rank_state in state.ranks.items() if rank_state.completed < furthest)


def without_entry(state: GroupState) -> frozenset[int]:
    """Ranks that have not enqueued what a peer waits for: they stall on the host. Never a rank without a dump."""
    wanted = max((rank_state.pending.seq for rank_state in state.ranks.values() if rank_state.pending), default=-1)
    behind = {rank for rank, rank_state in state.ranks.items() if rank_state.enqueued < wanted}
    return frozenset(behind | (set(state.silent) - set(state.unsure) if wanted >= 0 else set()))


def usual_side(state: GroupState, mismatch: Mismatch) -> str | None:
    """The value of `mismatch.values` that is right; None if nothing tells.

    In order: the majority's; in a tie, what sibling groups did there; on NCCL, the value of the ranks that do not lag,
    that is, that did not complete or enqueue less than a peer.
    """
    sides = sorted(mismatch.values.items(), key=lambda item: -len(item[1]))
    if len(sides) == 1 or len(sides[0][1]) > len(sides[1][1]):
        return sides[0][0]
    if mismatch.usual in mismatch.values:
        return mismatch.usual
    if len(sides) == 2 and state.group.backend in COUNTED:  # a gloo sender may be done before its receivers
        for at, (_, ranks) in enumerate(sides):
            if lag(state, frozenset(ranks)):
                return sides[1 - at][0]
    return None


def lag(state: GroupState, ranks: frozenset[int]) -> bool:
    """Whether these ranks, and no others, completed less than a peer, or else enqueued less."""
    return bool(ranks) and ranks in (laggards(state), without_entry(state))


def _parts(
    flights: Mapping[int, Flight],
    recorded_groups: Sequence[Group],
    standing: Mapping[int, Mapping[str, Status]],
    notes: list[str],
) -> dict[Group, dict[int, tuple[Flight, int]]]:
    """Groups with their members -> the ranks in whose dump each occurs, with the group's number in that dump."""
    parts: dict[Group, dict[int, tuple[Flight, int]]] = defaultdict(dict)
    unknown: list[tuple[Group, int, Flight, int]] = []
    for rank, flight in sorted(flights.items()):
        present = set(flight.group)
        for number, group in enumerate(flight.groups):
            if number not in present:
                continue
            members = group.members or _recorded(group, rank, recorded_groups, notes)
            full = replace(group, members=members, world_size=len(members))
            if members:
                parts[full][rank] = flight, number
            else:
                unknown.append((full, rank, flight, number))
    # A dump without members joins the group of the same name and backend if only one of them includes its rank, also
    # one that only the configuration of a dump without operations describes.
    configured = {_counted(group, flight) for flight in flights.values() for group in flight.config if group.members}
    for group, rank, flight, number in unknown:
        matching_groups = [
            known_group
            for known_group in {*parts, *configured}
            if known_group.name == group.name and known_group.backend == group.backend and rank in known_group.members
        ]
        parts[matching_groups[0] if len(matching_groups) == 1 else group][rank] = flight, number
    for rank, statuses in standing.items():  # pg_status knows groups of which the ring holds no operation any more
        for name in statuses:
            its = _without_operations(name, rank, flights[rank], parts)
            if its is not None and rank not in parts[its]:
                parts[its][rank] = flights[rank], -1
    return dict(parts)


def _without_operations(name: str, rank: int, flight: Flight, known_groups: Iterable[Group]) -> Group | None:
    """The group of that name that contains a rank, by its peers' operations, else by its own dump; None if neither
    knows."""
    for known_group in known_groups:
        if known_group.name == name and known_group.backend in COUNTED and rank in known_group.members:
            return known_group
    for dumped_group in (*flight.config, *flight.groups):
        if dumped_group.name == name and rank in dumped_group.members:
            return _counted(dumped_group, flight)
    return None


def _counted(group: Group, flight: Flight) -> Group:
    """A group of a dump's configuration as the operations of its members name it."""
    return replace(group, backend=flight.backend or NCCL, world_size=len(group.members))


def _recorded(group: Group, rank: int, recorded_groups: Sequence[Group], notes: list[str]) -> tuple[int, ...]:
    """A group's members as recorded at its creation: by the recorder's name, else by a description that fits only
    one group."""
    for fits in (
        lambda record: record.name == group.name and (not record.desc or record.desc == group.desc),
        lambda record: bool(group.desc) and group.desc in (record.name, record.desc),
    ):
        memberships = {record.members for record in recorded_groups if rank in record.members and fits(record)}
        if len(memberships) == 1:
            return next(iter(memberships))
        if memberships:
            notes.append(f"rank {rank}: several groups are recorded as {named(group)}, so its members are not known")
            return ()
    return ()


def _completed(group: Group, world: int | None) -> Group:
    if group.members or group.desc != DEFAULT or not world:
        return group
    return replace(group, members=tuple(range(world)), world_size=world)


def _world_size(flights: Iterable[Flight], recorded_groups: Sequence[Group], parts: Iterable[Group]) -> int | None:
    sizes = [flight.world_size for flight in flights if flight.world_size]
    sizes += [
        len(group.members)
        for group in (*recorded_groups, *parts)
        if DEFAULT in (group.name, group.desc) and group.members
    ]
    sizes += [group.world_size for group in recorded_groups if DEFAULT in (group.name, group.desc)]
    return max(sizes, default=0) or None


def _state(
    group: Group, parts: Mapping[int, Part], flights: Mapping[int, Flight], absent: Iterable[int],
    standing: Mapping[int, Mapping[str, Status]], notes: list[str],
) -> GroupState:  # fmt: skip
    """The state of one group. `absent`: absent ranks of the job; all of them are members of the default group,
    whoever recorded it."""
    silent = tuple(rank for rank in group.members if rank in flights and rank not in parts)
    unsure = tuple(rank for rank in silent if flights[rank].overflowed)
    if unsure:
        notes.append(
            f"group {named(group)}: rank {_ranks(unsure)} has nothing of it, but its ring has overflowed and may have "
            "lost it; raise TORCH_FR_BUFFER_SIZE"
        )
    return GroupState(
        group,
        {rank: _rank_state(group, rank, part, standing.get(rank, {})) for rank, part in parts.items()},
        absent=tuple(absent)
        if group.desc == DEFAULT and not group.members
        else tuple(rank for rank in group.members if rank not in flights),
        silent=silent,
        mismatches=mismatches(group, parts, notes),
        p2p={rank: pending for rank, part in parts.items() if (pending := _p2p_pending(part))},
        unsure=unsure,
        shares=parts,
    )


def _rank_state(group: Group, rank: int, part: Part, standing: Mapping[str, Status]) -> RankState:
    """The state of a rank, by the operations in its ring and by torch's own count, which outlives them."""
    state, status = _state_of_part(rank, part), standing.get(group.name)
    if status is None or group.backend not in COUNTED:
        return state
    # The ring may have lost operations that pg_status still counts.
    enqueued, completed = max(state.enqueued, status.enqueued), max(state.completed, status.completed)
    pending = state.pending
    if pending is None and enqueued > completed:  # the pending operation is no longer in the ring
        pending = Collective(group.name, completed + 1, "a collective", False, status.started > completed)
    elif pending is not None and pending.seq == state.enqueued == status.enqueued + 1 and not pending.started:
        # torch records an operation before its call, and counts it afterwards, as it counts sends and receives
        pending = replace(pending, called=not part.flight.p2p_rows(part.group))
    return replace(state, enqueued=enqueued, completed=completed, pending=pending)


def _state_of_part(rank: int, part: Part) -> RankState:
    if not len(part.seqs):
        return RankState(rank, key=part.flight.name)
    done = part.done
    pending, finished = done.find(0), done.rfind(1)
    return RankState(
        rank,
        enqueued=part.seqs[-1],
        completed=part.seqs[finished] if finished >= 0 else -1,
        joint=joint(part, finished),
        pending=part.flight.collective(part.rows[pending]) if pending >= 0 else None,
        last=part.flight.collective(part.rows[-1]),
        key=part.flight.name,
    )


def _p2p_pending(part: Part) -> tuple[Collective, ...]:
    rows = part.flight.p2p_rows(part.group)
    return tuple(part.flight.collective(row) for row in rows if not part.flight.done[row])


def _missing(rank: int, damaged: Flight | None) -> str:
    return f"no recorder data from rank {rank}" + ("" if damaged is None else f" ({'; '.join(damaged.notes)})")


def _damaged(flights: Iterable[Flight], size: int | None) -> tuple[dict[int | None, Flight], list[str]]:
    """Unreadable dumps by rank, and a sentence for each whose rank a world of this size does not have."""
    damaged = {flight.rank: flight for flight in flights if not flight.readable}
    beyond = sorted(rank for rank in damaged if size and rank is not None and rank >= size)
    sentences = [
        f"left out: {'; '.join(damaged.pop(rank).notes)}, and a world of {size:,} has no rank {rank:,}"
        for rank in beyond
    ]
    return damaged, sentences


def _order(item: tuple[Group, object]) -> tuple[int, int, str]:
    name = item[0].name
    return (0, int(name), name) if name.isdecimal() and len(name) < 10 else (1, 0, name)


def _only(ranks: Collection[int]) -> str:
    return f"only ranks {_ranks(ranks)} are" if len(ranks) > 1 else f"only rank {_ranks(ranks)} is"


def _ranks(ranks: Iterable[int]) -> str:
    listed = list(map(str, ranks))
    return ", ".join([*listed[:8], *([f"... ({len(listed)} in all)"] if len(listed) > 8 else [])])
