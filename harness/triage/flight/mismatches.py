"""Where the shares of several ranks in one group disagree."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import replace

from harness.triage.evidence import Group
from harness.triage.flight.flight import Part, integers
from harness.triage.flight.model import GroupState, Mismatch
from harness.triage.flight.operations import Signature, described, signature
from reports.text import listed

MISMATCHES = 8  # mismatches kept per group: after the first one, a shifted sequence differs everywhere
DEFAULT = "default_pg"  # torch's description of the group that init_process_group makes


def mismatches(group: Group, parts: Mapping[int, Part], notes: list[str]) -> tuple[Mismatch, ...]:
    """The first sequence numbers at which ranks have different operations, at most MISMATCHES.

    A difference that all ranks completed, with equal completed operations after it, explains no stall. It becomes a
    note.
    """
    full = {rank: part for rank, part in parts.items() if len(part.seqs)}
    if len(full) < 2:
        return ()
    newest_start = max(full, key=lambda rank: full[rank].seqs[0])
    oldest_end = min(full, key=lambda rank: full[rank].seqs[-1])
    start, end = full[newest_start].seqs[0], full[oldest_end].seqs[-1]
    if start > end and full[newest_start].flight.overflowed:
        notes.append(
            f"group {named(group)}: rank {newest_start} holds #{start} and later, rank {oldest_end} ends at #{end}: "
            "the ring is too short to compare them; raise TORCH_FR_BUFFER_SIZE"
        )
    numbers: dict[Signature, int] = {}
    shares = Counter((part.seqs.tobytes(), _signed(part, numbers), part.done) for part in full.values())
    if len(numbers) == 1:
        return ()
    first_sign: dict[int, int] = {}
    ranks_at: dict[int, int] = defaultdict(int)
    differ: set[int] = set()
    unfinished: set[int] = set()
    for (packed_seqs, packed_signs, done), ranks in shares.items():  # equal shares are counted once
        for seq, sign, over in zip(_unpacked(packed_seqs), _unpacked(packed_signs), done, strict=True):
            ranks_at[seq] += ranks
            if first_sign.setdefault(seq, sign) != sign:
                differ.add(seq)
            if not over:
                unfinished.add(seq)
    open_or_different = differ | unfinished
    agreed = (seq for seq, ranks in ranks_at.items() if ranks == len(full) and seq not in open_or_different)
    last_agreed = max(agreed, default=-1)
    # A difference before the last operation that all completed alike is not what they wait for.
    passed = sorted(seq for seq in differ - unfinished if seq < last_agreed)
    if passed:
        first = _mismatch(group, passed[0], full)
        sides = "; ".join(f"{what} on rank {listed(side_ranks)}" for what, side_ranks in first.values.items())
        more = f" (the first of {len(passed)})" if len(passed) > 1 else ""
        notes.append(
            f"group {named(group)}: the ranks differed at #{first.seq}{more}, {sides}; it went through, and all have "
            "completed equal operations since, so it is not what they wait for"
        )
    return tuple(_mismatch(group, seq, full) for seq in sorted(differ.difference(passed))[:MISMATCHES])


def _signed(part: Part, numbers: dict[Signature, int]) -> bytes:
    """For each operation of a rank the number of its signature, packed as 64-bit integers."""
    used = {kind: numbers.setdefault(signature(part.table[kind]), len(numbers)) for kind in dict.fromkeys(part.kinds)}
    return integers(map(used.__getitem__, part.kinds)).tobytes()


def _unpacked(column: bytes) -> memoryview:
    return memoryview(column).cast("q")


def _mismatch(group: Group, seq: int, parts: Mapping[int, Part]) -> Mismatch:
    kind_by_rank = {rank: parts[rank].at(seq) for rank in sorted(parts)}
    kinds = {rank: kind for rank, kind in kind_by_rank.items() if kind is not None}
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
    """In a tie, mark the side that agrees with the other groups of the same description and size at that number."""
    if not state.mismatches:
        return state
    first, group = state.mismatches[0], state.group
    counts = sorted(map(len, first.values.values()))
    if 2 * counts[-1] > sum(counts) or group.desc in ("", "undefined", DEFAULT):
        return state
    signatures = set()
    for peer_group, parts in shares.items():
        is_sibling = (peer_group.desc, peer_group.backend, len(peer_group.members)) == (
            group.desc,
            group.backend,
            len(group.members),
        )
        if is_sibling and peer_group != group:
            signatures |= {signature(kind) for part in parts.values() if (kind := part.at(first.seq)) is not None}
    if len(signatures) != 1:
        return state
    [usual] = signatures
    mine = shares[group]
    for value, ranks in first.values.items():
        kind = mine[ranks[0]].at(first.seq)
        if kind is not None and signature(kind) == usual:
            return replace(state, mismatches=(replace(first, usual=value), *state.mismatches[1:]))
    return state


def named(group: Group) -> str:
    return f"{group.name} ({group.desc})" if group.desc and group.desc != "undefined" else group.name
