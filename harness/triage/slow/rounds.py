"""When each rank came to each collective of one group, from the recorders of all its members.

Two measures exist, and each is used where it is true:

- On gloo a rank waits in its collective from the moment at which it enqueues it. The recorder has that moment by the
  clock of the rank's host.
- On a device the host enqueues ahead of the device, so that moment says nothing. With TORCH_NCCL_ENABLE_TIMING=1 the
  recorder has how long each collective ran on the device. It ends on all ranks together, so the rank with the shortest
  one came last. No clocks are compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.triage.flight.flight import COUNTED, Part
from harness.triage.flight.model import GroupState
from harness.triage.flight.worlds import MUTUAL
from harness.triage.slow.clocks import Offset, Times, offsets

GLOO = "gloo"
NO_TIMING = "the recorders have no durations, which take TORCH_NCCL_ENABLE_TIMING=1"
NO_CLOCK = "the clocks of the ranks cannot be compared by these collectives"
PARTLY = "not every member of the group has a dump with its operations"
FEW = "the recorders share fewer than two finished collectives"
OTHER = "its backend is neither gloo's nor a device's"


@dataclass(frozen=True)
class Round:
    """One collective that every member waited for, or several that were enqueued without waiting in between.

    `late_ns`: rank -> by how much later than the first rank it came.
    """

    op: str
    late_ns: Times


@dataclass(frozen=True)
class Rounds:
    """The rounds of one group, oldest first.

    `bounds_ns`: rank -> how far off `late_ns` may be against a rank of another host. `elapsed_ns`: from the first
    collective to the last.
    """

    rounds: tuple[Round, ...]
    elapsed_ns: int
    bounds_ns: Times
    host_of: Mapping[int, str]

    def apart_ns(self, rank: int, other: int) -> int:
        """How far off the difference of two ranks may be."""
        same = self.host_of[rank] == self.host_of[other]
        return 0 if same else self.bounds_ns[rank] + self.bounds_ns[other]


def rounds(state: GroupState, host_of: Mapping[int, str]) -> Rounds | str:
    """The rounds of a group; why there are none, in words, if its recorders do not say them.

    `host_of`: rank -> its host; a rank whose host is not known has a name of its own there.
    """
    shares = {rank: share for rank, share in state.shares.items() if len(share.seqs)}
    if state.absent or state.silent or not 1 < len(state.group.members) == len(shares):
        return PARTLY
    on_device = state.group.backend in COUNTED
    if not on_device and state.group.backend != GLOO:
        return OTHER
    if on_device and any(max(share.flight.duration_us, default=-1) < 0 for share in shares.values()):
        return NO_TIMING
    rows = _shared(shares)
    if len(rows) < 2:
        return FEW
    return _timed(shares, rows, host_of) if on_device else _enqueued(shares, rows, host_of)


def _shared(shares: Mapping[int, Part]) -> list[tuple[str, dict[int, int]]]:
    """The finished collectives that every rank waits in, oldest first: name, and rank -> row of its dump."""
    row_of = {rank: dict(zip(share.seqs, share.rows, strict=True)) for rank, share in shares.items()}
    some, *others = row_of.values()
    seqs = sorted(set(some).intersection(*others))
    shared = []
    for seq in seqs:
        rows = {rank: by_seq[seq] for rank, by_seq in row_of.items()}
        ops = {shares[rank].flight.kinds[shares[rank].flight.kind[row]].op for rank, row in rows.items()}
        done = all(shares[rank].flight.done[row] for rank, row in rows.items())
        if done and len(ops) == 1 and (op := ops.pop()).startswith(MUTUAL):
            shared.append((op, rows))
    return shared


def _timed(
    shares: Mapping[int, Part], rows: Sequence[tuple[str, dict[int, int]]], host_of: Mapping[int, str]
) -> Rounds | str:
    """Rounds by the time that each collective took on each rank's device."""
    measured = []
    for op, row_of in rows:
        took_us = {rank: shares[rank].flight.duration_us[row] for rank, row in row_of.items()}
        if min(took_us.values()) >= 0:
            longest = max(took_us.values())
            measured.append(Round(op, {rank: 1000 * (longest - took) for rank, took in took_us.items()}))
    if len(measured) < 2:
        return NO_TIMING
    created = [[shares[rank].flight.created_ns[row_of[rank]] for _, row_of in rows] for rank in shares]
    elapsed_ns = min(times[-1] - times[0] for times in created)
    return Rounds(tuple(measured), elapsed_ns, dict.fromkeys(shares, 0), host_of)


def _enqueued(
    shares: Mapping[int, Part], rows: Sequence[tuple[str, dict[int, int]]], host_of: Mapping[int, str]
) -> Rounds | str:
    """Rounds by the time at which each rank enqueued each collective."""
    arrivals = [{rank: shares[rank].flight.created_ns[row] for rank, row in row_of.items()} for _, row_of in rows]
    mine = {rank: host_of[rank] for rank in shares}
    by_host = offsets(arrivals, mine)
    if by_host is None or min(min(times.values()) for times in arrivals) <= 0:
        return NO_CLOCK
    measured = [
        (op, {rank: at - by_host[mine[rank]].ahead_ns for rank, at in times.items()})
        for (op, _), times in zip(rows, arrivals, strict=True)
    ]
    elapsed_ns = max(measured[-1][1].values()) - min(measured[0][1].values())
    bounds = {rank: by_host.get(host, Offset()).bound_ns for rank, host in mine.items()}
    return Rounds(tuple(_waited(measured)), elapsed_ns, bounds, mine)


def _waited(arrivals: Sequence[tuple[str, Times]]) -> list[Round]:
    """One round for each time that all ranks waited for all: of collectives that overlap, the one with most waiting."""
    merged: list[Round] = []
    ends = 0  # when the last rank came to the collectives so far
    for op, times in arrivals:
        first, last = min(times.values()), max(times.values())
        late = Round(op, {rank: at - first for rank, at in times.items()})
        if merged and first < ends:
            merged[-1] = max(merged[-1], late, key=lambda each: max(each.late_ns.values()))
        else:
            merged.append(late)
        ends = max(ends, last)
    return merged
