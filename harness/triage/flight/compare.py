"""All ranks' recorders side by side: where each stands in each group, and the first operations that do not agree.

Nothing is concluded from what is not there: a rank without a dump is absent, one whose ring has overflowed is unsure,
and a group whose members nobody recorded is compared among the ranks that mention it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from harness.triage.evidence import Group
from harness.triage.flight.flight import Flight, Kind
from harness.triage.flight.loading import Flights
from harness.triage.flight.model import Collective, Comparison, GroupState, Mismatch, RankState
from harness.triage.flight.operations import coalesced, described, signature
from harness.triage.flight.worlds import worlds

MISMATCHES = 8  # kept of a group: after the first, a shifted sequence differs everywhere
DEFAULT = "default_pg"  # torch's description of the group that init_process_group makes


@dataclass(frozen=True)
class _Part:
    """One rank's share in one group: its collectives by sequence number, coalesced ones as one."""

    flight: Flight
    group: int
    rows: npt.NDArray[np.intp]  # last row of each sequence number
    seqs: npt.NDArray[np.int64]  # ascending
    kinds: npt.NDArray[np.int64]  # places in `table`
    table: Sequence[Kind]

    def at(self, seq: int) -> Kind | None:
        """What the rank did at a sequence number, None where its ring does not have it."""
        place = int(np.searchsorted(self.seqs, seq))
        return self.table[self.kinds[place]] if place < len(self.seqs) and self.seqs[place] == seq else None


def compare(flights: Mapping[str, Flight] | Iterable[Flight], memberships: Iterable[Group] = ()) -> Comparison:
    """Compare the ranks of one job, flights without a rank aside.

    `memberships`: groups as they were recorded at their creation, for dumps that do not know them (gloo's). With dumps
    of several jobs there is nothing to compare: `jobs` says how many, and `worlds` separates them.
    """
    held = flights if isinstance(flights, Mapping) else {flight.name: flight for flight in flights}
    given = tuple(dict.fromkeys(memberships))
    notes = [*(held.notes if isinstance(held, Flights) else ()), *(note for one in held.values() for note in one.notes)]
    notes += [f"{name}: its rank is not known, left out" for name, one in held.items() if one.rank is None]
    versions = tuple(sorted({one.version for one in held.values() if one.version}))
    if len(versions) > 1:
        notes.append(f"dump formats differ ({', '.join(versions)}): not every rank runs the same torch")
    separate = worlds(held)
    if len(separate) > 1:
        for number, world in enumerate(separate, 1):
            notes.append(f"job {number} of {len(separate)}: {_listed(list(world))}")
        ranks = sorted({one.rank for one in held.values() if one.rank is not None})
        return Comparison((), tuple(ranks), jobs=len(separate), versions=versions, notes=tuple(notes))
    readable = {one.rank: one for one in held.values() if one.rank is not None and one.readable}
    silenced = not any(len(one) for one in readable.values())
    parts = {} if silenced else _parts(readable, given, notes)
    size = _world_size(held.values(), given, parts)
    parts = {_completed(group, size): found for group, found in parts.items()}
    expected = set(range(size or 0)) | {rank for group in parts for rank in group.members}
    absent = sorted(expected - set(readable))
    missing = [_missing(rank, held.values()) for rank in absent]
    if silenced and readable:
        missing.append("no operations in any dump: the recorder is off (TORCH_FR_BUFFER_SIZE=0), or nothing was run")
    shares = {
        group: {rank: _part(flight, number) for rank, (flight, number) in sorted(found.items())}
        for group, found in sorted(parts.items(), key=_order)
    }
    states = tuple(_state(group, found, readable, notes) for group, found in shares.items())
    states = tuple(_against_siblings(state, shares) for state in states)
    missing += [
        f"members of group {_named(state.group)} were not recorded: only ranks {_ranks(state.ranks)} are seen in it"
        for state in states
        if not state.group.members
    ]
    return Comparison(states, tuple(sorted(readable)), size, 1, versions, tuple(notes), tuple(missing), tuple(absent))


def laggards(state: GroupState) -> frozenset[int]:
    """Ranks whose last completed operation lags behind a peer's: stalls on the device."""
    furthest = max((one.completed for one in state.ranks.values()), default=-1)
    return frozenset(rank for rank, one in state.ranks.items() if one.completed < furthest)


def without_entry(state: GroupState) -> frozenset[int]:
    """Ranks that have not enqueued what a peer waits for: stalls on the host. Never one without a dump."""
    wanted = max((one.pending.seq for one in state.ranks.values() if one.pending), default=-1)
    behind = {rank for rank, one in state.ranks.items() if one.enqueued < wanted}
    return frozenset(behind | (set(state.silent) - set(state.unsure) if wanted >= 0 else set()))


def _parts(
    flights: Mapping[int, Flight], given: Sequence[Group], notes: list[str]
) -> dict[Group, dict[int, tuple[Flight, int]]]:
    """Groups with their members, and for each the ranks in whose dump it occurs, with its number there."""
    known: dict[Group, dict[int, tuple[Flight, int]]] = defaultdict(dict)
    unknown: list[tuple[Group, int, Flight, int]] = []
    for rank, flight in sorted(flights.items()):
        present = set(np.unique(flight.group).tolist())
        for number, group in enumerate(flight.groups):
            if number not in present:
                continue
            members = group.members or _recorded(group, rank, given, notes)
            full = replace(group, members=members, world_size=len(members))
            if members:
                known[full][rank] = flight, number
            else:
                unknown.append((full, rank, flight, number))
    for group, rank, flight, number in unknown:
        same = [one for one in known if one.name == group.name and one.backend == group.backend and rank in one.members]
        known[same[0] if len(same) == 1 else group][rank] = flight, number
    return dict(known)


def _recorded(group: Group, rank: int, given: Sequence[Group], notes: list[str]) -> tuple[int, ...]:
    """Members as recorded at creation: by the recorder's name, else by a description that fits only one group."""
    for fits in (
        lambda one: one.name == group.name and (not one.desc or one.desc == group.desc),
        lambda one: bool(group.desc) and group.desc in (one.name, one.desc),
    ):
        found = {one.members for one in given if rank in one.members and fits(one)}
        if len(found) == 1:
            return next(iter(found))
        if found:
            notes.append(f"rank {rank}: several groups are recorded as {_named(group)}, so its members are not known")
            return ()
    return ()


def _completed(group: Group, world: int | None) -> Group:
    if group.members or group.desc != DEFAULT or not world:
        return group
    return replace(group, members=tuple(range(world)), world_size=world)


def _world_size(flights: Iterable[Flight], given: Sequence[Group], parts: Iterable[Group]) -> int | None:
    sizes = [one.world_size for one in flights if one.world_size]
    sizes += [len(one.members) for one in (*given, *parts) if DEFAULT in (one.name, one.desc) and one.members]
    sizes += [one.world_size for one in given if DEFAULT in (one.name, one.desc)]
    return max(sizes, default=0) or None


def _state(group: Group, parts: Mapping[int, _Part], flights: Mapping[int, Flight], notes: list[str]) -> GroupState:
    silent = tuple(rank for rank in group.members if rank in flights and rank not in parts)
    unsure = tuple(rank for rank in silent if flights[rank].overflowed)
    if unsure:
        notes.append(
            f"group {_named(group)}: rank {_ranks(unsure)} has nothing of it, but its ring has overflowed and may have "
            "lost it; raise TORCH_FR_BUFFER_SIZE"
        )
    return GroupState(
        group,
        {rank: _rank_state(rank, part) for rank, part in parts.items()},
        absent=tuple(rank for rank in group.members if rank not in flights),
        silent=silent,
        mismatches=_mismatches(group, parts, notes),
        p2p={rank: pending for rank, part in parts.items() if (pending := _p2p_pending(part))},
        unsure=unsure,
    )


def _against_siblings(state: GroupState, shares: Mapping[Group, Mapping[int, _Part]]) -> GroupState:
    """In a tie, what the other groups of that description and size did at that number tells which side is odd."""
    if not state.mismatches:
        return state
    first, group = state.mismatches[0], state.group
    counts = sorted(map(len, first.values.values()))
    if 2 * counts[-1] > sum(counts) or group.desc in ("", "undefined", DEFAULT):
        return state
    found = set()
    for other, parts in shares.items():
        alike = (other.desc, other.backend, len(other.members)) == (group.desc, group.backend, len(group.members))
        if alike and other != group:
            found |= {signature(kind) for part in parts.values() if (kind := part.at(first.seq)) is not None}
    if len(found) != 1:
        return state
    [usual] = found
    mine = shares[group]
    for value, ranks in first.values.items():
        kind = mine[ranks[0]].at(first.seq)
        if kind is not None and signature(kind) == usual:
            return replace(state, mismatches=(replace(first, usual=value), *state.mismatches[1:]))
    return state


def _part(flight: Flight, number: int) -> _Part:
    rows = flight.rows(number)
    order = np.argsort(flight.seq[rows], kind="stable")
    rows = rows[order]
    seqs = flight.seq[rows]
    last = np.append(seqs[1:] != seqs[:-1], True) if len(rows) else np.zeros(0, np.bool_)
    kinds, table = flight.kind[rows[last]], list(flight.kinds)
    if not last.all():
        starts = np.flatnonzero(np.append(True, last[:-1]))
        ends = np.flatnonzero(last)
        kinds, merged = kinds.copy(), {}
        for place in np.flatnonzero(starts != ends):
            inside = tuple(flight.kind[rows[starts[place] : ends[place] + 1]].tolist())
            if inside not in merged:
                merged[inside] = len(table)
                table.append(coalesced(tuple(flight.kinds[one] for one in inside)))
            kinds[place] = merged[inside]
    return _Part(flight, number, rows[last], seqs[last], kinds, table)


def _rank_state(rank: int, part: _Part) -> RankState:
    if not len(part.seqs):
        return RankState(rank, key=part.flight.name)
    done = part.flight.done[part.rows]
    pending = np.flatnonzero(~done)
    finished = part.seqs[done]
    return RankState(
        rank,
        enqueued=int(part.seqs[-1]),
        completed=int(finished[-1]) if len(finished) else -1,
        pending=part.flight.collective(int(part.rows[pending[0]])) if len(pending) else None,
        last=part.flight.collective(int(part.rows[-1])),
        key=part.flight.name,
    )


def _p2p_pending(part: _Part) -> tuple[Collective, ...]:
    rows = part.flight.rows(part.group, p2p=True)
    return tuple(part.flight.collective(int(row)) for row in rows[~part.flight.done[rows]])


def _mismatches(group: Group, parts: Mapping[int, _Part], notes: list[str]) -> tuple[Mismatch, ...]:
    """The first sequence numbers at which ranks have different operations, by sorting all of them at once."""
    full = {rank: part for rank, part in parts.items() if len(part.seqs)}
    if len(full) < 2:
        return ()
    newest_start = max(full, key=lambda rank: int(full[rank].seqs[0]))
    oldest_end = min(full, key=lambda rank: int(full[rank].seqs[-1]))
    start, end = int(full[newest_start].seqs[0]), int(full[oldest_end].seqs[-1])
    if start > end and full[newest_start].flight.overflowed:
        notes.append(
            f"group {_named(group)}: rank {newest_start} holds #{start} and later, rank {oldest_end} ends at #{end}: "
            "the ring is too short to compare them; raise TORCH_FR_BUFFER_SIZE"
        )
    numbers: dict[object, int] = {}
    columns = [_signed(part, numbers) for part in full.values()]
    seqs = np.concatenate([part.seqs for part in full.values()])
    signs = np.concatenate(columns)
    ranks = np.repeat(np.array(list(full)), [len(part.seqs) for part in full.values()])
    if len(numbers) == 1:
        return ()
    order = np.lexsort((signs, seqs))
    seqs, signs, ranks = seqs[order], signs[order], ranks[order]
    differ = np.unique(seqs[1:][(seqs[1:] == seqs[:-1]) & (signs[1:] != signs[:-1])])
    return tuple(
        _mismatch(group, int(seq), full, ranks[np.searchsorted(seqs, seq) : np.searchsorted(seqs, seq, "right")])
        for seq in differ[:MISMATCHES]
    )


def _signed(part: _Part, numbers: dict[object, int]) -> npt.NDArray[np.int64]:
    """For each operation of a rank the number of what its peers must share."""
    used = np.unique(part.kinds)
    places = np.zeros(len(part.table), np.int64)
    for one in used.tolist():
        places[one] = numbers.setdefault(signature(part.table[one]), len(numbers))
    return places[part.kinds]


def _mismatch(group: Group, seq: int, parts: Mapping[int, _Part], ranks: npt.NDArray[np.int64]) -> Mismatch:
    found = {rank: parts[rank].at(seq) for rank in sorted(ranks.tolist())}
    kinds = {rank: kind for rank, kind in found.items() if kind is not None}
    signs = {rank: signature(kind) for rank, kind in kinds.items()}
    if len({sign.op for sign in signs.values()}) > 1:
        return Mismatch(group.name, seq, "op", _sides({rank: sign.op for rank, sign in signs.items()}))
    if len({sign.numels for sign in signs.values()}) > 1:
        first = {sign.numels: described(kinds[rank]) for rank, sign in reversed(signs.items())}
        texts = {rank: first[sign.numels] for rank, sign in signs.items()}
        if len(set(texts.values())) < len(first):
            texts = {rank: f"{list(sign.numels)} elements" for rank, sign in signs.items()}
        return Mismatch(group.name, seq, "sizes", _sides(texts))
    return Mismatch(group.name, seq, "dtype", _sides({rank: "/".join(sign.dtypes) for rank, sign in signs.items()}))


def _sides(values: Mapping[int, str]) -> dict[str, tuple[int, ...]]:
    sides: dict[str, list[int]] = defaultdict(list)
    for rank, value in values.items():
        sides[value].append(rank)
    return {value: tuple(ranks) for value, ranks in sides.items()}


def _missing(rank: int, flights: Iterable[Flight]) -> str:
    for flight in flights:
        if flight.rank == rank and not flight.readable:
            return f"no recorder data from rank {rank} ({'; '.join(flight.notes)})"
    return f"no recorder data from rank {rank}"


def _order(item: tuple[Group, object]) -> tuple[int, int, str]:
    name = item[0].name
    return (0, int(name), name) if name.isdecimal() and len(name) < 10 else (1, 0, name)


def _named(group: Group) -> str:
    return f"{group.name} ({group.desc})" if group.desc and group.desc != "undefined" else group.name


def _ranks(ranks: Iterable[int]) -> str:
    return ", ".join(map(str, _few(ranks)))


def _few(ranks: Iterable[int], most: int = 8) -> Iterator[object]:
    listed = list(ranks)
    yield from listed[:most]
    if len(listed) > most:
        yield f"... ({len(listed)} in all)"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + (f", ... ({len(names)} in all)" if len(names) > 4 else "")
