"""One rank's share in a group by sequence number, and where the shares of several ranks do not agree."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from harness.triage.evidence import Group
from harness.triage.flight.flight import Flight, Kind
from harness.triage.flight.model import GroupState, Mismatch
from harness.triage.flight.operations import coalesced, described, signature

MISMATCHES = 8  # kept of a group: after the first, a shifted sequence differs everywhere
DEFAULT = "default_pg"  # torch's description of the group that init_process_group makes


@dataclass(frozen=True)
class Part:
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


def part_of(flight: Flight, number: int) -> Part:
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
    return Part(flight, number, rows[last], seqs[last], kinds, table)


def mismatches(group: Group, parts: Mapping[int, Part], notes: list[str]) -> tuple[Mismatch, ...]:
    """The first sequence numbers at which ranks have different operations, by sorting all of them at once.

    A difference that all of them completed, and behind which all completed equal operations, went through: it explains
    no stall, and is a note.
    """
    full = {rank: part for rank, part in parts.items() if len(part.seqs)}
    if len(full) < 2:
        return ()
    newest_start = max(full, key=lambda rank: int(full[rank].seqs[0]))
    oldest_end = min(full, key=lambda rank: int(full[rank].seqs[-1]))
    start, end = int(full[newest_start].seqs[0]), int(full[oldest_end].seqs[-1])
    if start > end and full[newest_start].flight.overflowed:
        notes.append(
            f"group {named(group)}: rank {newest_start} holds #{start} and later, rank {oldest_end} ends at #{end}: "
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
    done = np.concatenate([part.flight.done[part.rows] for part in full.values()])[order]
    seqs, signs, ranks = seqs[order], signs[order], ranks[order]
    places, starts, counts = np.unique(seqs, return_index=True, return_counts=True)
    equal = np.minimum.reduceat(signs, starts) == np.maximum.reduceat(signs, starts)
    over = np.logical_and.reduceat(done, starts)
    agreed = places[equal & over & (counts == len(full))]
    passed = ~equal & over & (places < (agreed[-1] if len(agreed) else -1))

    def at(place: int) -> Mismatch:
        return _mismatch(group, int(places[place]), full, ranks[starts[place] : starts[place] + counts[place]])

    if passed.any():
        first = at(int(np.flatnonzero(passed)[0]))
        sides = "; ".join(f"{what} on rank {_few(some)}" for what, some in first.values.items())
        more = f" (the first of {int(passed.sum())})" if passed.sum() > 1 else ""
        notes.append(
            f"group {named(group)}: the ranks differed at #{first.seq}{more}, {sides}; it went through, and all have "
            "completed equal operations since, so it is not what they wait for"
        )
    return tuple(at(int(place)) for place in np.flatnonzero(~equal & ~passed)[:MISMATCHES])


def _few(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks[:8])) + (f", ... ({len(ranks)} in all)" if len(ranks) > 8 else "")


def _signed(part: Part, numbers: dict[object, int]) -> npt.NDArray[np.int64]:
    """For each operation of a rank the number of what its peers must share."""
    used = np.unique(part.kinds)
    places = np.zeros(len(part.table), np.int64)
    for one in used.tolist():
        places[one] = numbers.setdefault(signature(part.table[one]), len(numbers))
    return places[part.kinds]


def _mismatch(group: Group, seq: int, parts: Mapping[int, Part], ranks: npt.NDArray[np.int64]) -> Mismatch:
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


def against_siblings(state: GroupState, shares: Mapping[Group, Mapping[int, Part]]) -> GroupState:
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


def named(group: Group) -> str:
    return f"{group.name} ({group.desc})" if group.desc and group.desc != "undefined" else group.name
