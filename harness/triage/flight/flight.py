"""One rank's flight recorder, held as columns: 2,000 operations take 90 kB instead of 2,000 dictionaries.

The columns are arrays of the standard library. `harness triage` needs NumPy for nothing else, and it would make the
installation three times as large. Most of the time goes into unpickling anyway.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

from harness.errors import BadInput
from harness.triage.evidence import Frame, Group
from harness.triage.flight.model import Collective
from harness.triage.flight.operations import Kind, coalesced
from probes import limits

MAX_DUMP_BYTES = 256 << 20  # a ring of 2,000 takes 0.3 to 2 MB; this holds more than 200,000
# The columns of a Flight.
INTEGERS = ("record", "group", "seq", "kind", "stack", "created_ns", "timeout_ms", "duration_us")
FLAGS = ("done", "started", "p2p")
# Backends whose pg_status is used. HCCL's recorder (torch_npu) is a copy of NCCL's. gloo writes a number that does not
# fit its operations (torch 2.13).
COUNTED = ("nccl", "hccl")


class Status(NamedTuple):
    """torch's pg_status of one group: the last collective_seq_id that this rank enqueued, started and completed.

    It is kept when the ring has overwritten operations, and in dumps of active operations only. Only that of the
    backends in COUNTED is used.
    """

    enqueued: int
    started: int
    completed: int


class FlightError(BadInput):
    """A file that cannot be read as a flight recorder dump: cut short, damaged, hostile, too large or missing."""


class NotADump(FlightError):
    """A file that never was a flight recorder dump."""


def integers(values: Iterable[int] = ()) -> array[int]:
    """A column of 64-bit integers. Raises TypeError or OverflowError."""
    return array("q", values)


@dataclass(frozen=True, eq=False)
class Flight:
    """What the recorder of one process held.

    Columns have one item per operation, oldest first; flags are bytes of 0 and 1. `groups` are the process groups that
    occur; their `members` are empty if the dump does not say them (always on gloo). The column `group` indexes
    `groups`, `kind` indexes `kinds`, and `stack` indexes `stacks` (-1: no frames). `readable` is False for a rank whose
    file exists and cannot be used; `notes` say why.
    """

    name: str  # name of the file, or of the process
    rank: int | None = None  # global rank; None if neither the name nor the dump says it
    version: str = ""  # version of the dump's format: 2.10 is torch 2.13's
    backend: str = ""  # nccl, gloo, ...; empty without operations
    library: str = ""  # version of the communication library
    series: str = ""  # the part of file names that one job's files share: "nccl_trace_rank_"
    world_size: int | None = None
    mentioned: tuple[int, ...] = ()  # ranks of the job that its groups name, gloo's nameless entry included
    groups: tuple[Group, ...] = ()
    kinds: tuple[Kind, ...] = ()
    stacks: tuple[tuple[Frame, ...], ...] = ()  # innermost first
    record: array[int] = field(default_factory=integers)  # number of the operation in the ring
    group: array[int] = field(default_factory=integers)
    seq: array[int] = field(default_factory=integers)  # collective_seq_id; p2p_seq_id for point-to-point operations
    kind: array[int] = field(default_factory=integers)
    stack: array[int] = field(default_factory=integers)
    created_ns: array[int] = field(default_factory=integers)  # wall clock of the rank's host
    timeout_ms: array[int] = field(default_factory=integers)
    # From its start to its end on the device; -1 where it was not timed, as without TORCH_NCCL_ENABLE_TIMING=1.
    duration_us: array[int] = field(default_factory=integers)
    done: bytes = b""
    started: bytes = b""
    p2p: bytes = b""
    status: dict[str, Status] = field(default_factory=dict)  # torch's number of a group in this process -> pg_status
    handles: dict[str, str] = field(default_factory=dict)  # such a number -> the group's name, by operations held
    config: tuple[Group, ...] = ()  # all groups of pg_config, if `status` has a number that `handles` lacks
    # Wall clock at the moment of the dump of a live process. 0 if that clock cannot be relied on; None for a file that
    # was found on disk.
    taken_ns: int | None = None
    readable: bool = True
    notes: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()  # parts of the dump that could not be read

    def __len__(self) -> int:
        return len(self.seq)

    @property
    def overflowed(self) -> bool:
        """Whether older operations are missing: overwritten in the ring, or left out of a dump of active operations
        only."""
        count = len(self)
        return bool(count) and (self.record[0] > 0 or self.record[-1] - self.record[0] != count - 1)

    def standing(self) -> dict[str, Status]:
        """Group name -> its pg_status.

        torch numbers this rank's NCCL groups in the order in which they were made, and their names are in the same
        order. That order names the numbers that no operation in the ring explains, but only if it agrees with all
        numbers that are known.
        """
        if not self.status:
            return {}
        mine = {group.name: number for group in self.config if self.rank in group.members
                and (number := limits.whole_text(group.name)) is not None}  # fmt: skip
        by_order = {str(at): name for at, name in enumerate(sorted(mine, key=lambda name: mine[name]))}
        if any(by_order.get(number, name) != name for number, name in self.handles.items()):
            by_order = {}
        names = {**by_order, **self.handles}
        return {names[number]: status for number, status in self.status.items() if number in names}

    def collective(self, row: int) -> Collective:
        """One operation, with all its fields."""
        kind, created = self.kinds[self.kind[row]], self.created_ns[row]
        timeout, stack = self.timeout_ms[row], self.stack[row]
        aged = bool(self.taken_ns) and created > 0
        return Collective(
            group=self.groups[self.group[row]].name,
            seq=self.seq[row],
            op=kind.op,
            done=bool(self.done[row]),
            started=bool(self.started[row]),
            p2p=bool(self.p2p[row]),
            sizes=kind.inputs + kind.outputs,
            dtype="/".join(dict.fromkeys(kind.input_dtypes + kind.output_dtypes)),
            age_s=max(0.0, ((self.taken_ns or 0) - created) / 1e9) if aged else None,
            timeout_s=timeout / 1000 if timeout >= 0 else None,
            frames=self.stacks[stack] if stack >= 0 else (),
        )

    def collectives(self) -> Iterator[Collective]:
        """All operations, oldest first."""
        return map(self.collective, range(len(self)))

    def p2p_rows(self, group: int) -> list[int]:
        """Rows of the point-to-point operations of one of `groups`."""
        return [row for row, p2p in enumerate(self.p2p) if p2p and self.group[row] == group] if any(self.p2p) else []

    def part(self, group: int) -> Part:
        """The share of one of `groups`: its collectives by sequence number. An empty share for -1, a group without
        operations."""
        return self._parts.get(group) or Part(self, group, integers(), integers(), integers(), self.kinds)

    @cached_property
    def _parts(self) -> dict[int, Part]:
        last: dict[int, dict[int, int]] = {}  # group -> sequence number -> row
        shared: dict[int, dict[int, list[int]]] = {}  # the same for coalesced operations (they share a seq) -> all rows
        for row, (group, seq, p2p) in enumerate(zip(self.group, self.seq, self.p2p, strict=True)):
            if p2p:
                continue
            row_by_seq = last.setdefault(group, {})
            if seq in row_by_seq:
                shared.setdefault(group, {}).setdefault(seq, [row_by_seq[seq]]).append(row)
            row_by_seq[seq] = row
        return {group: self._part(group, rows, shared.get(group, {})) for group, rows in last.items()}

    def _part(self, group: int, last: dict[int, int], shared: dict[int, list[int]]) -> Part:
        seqs = integers(sorted(last))
        rows = integers(map(last.__getitem__, seqs))
        kinds = integers(map(self.kind.__getitem__, rows))
        table = list(self.kinds)
        merged: dict[tuple[int, ...], int] = {}
        for seq, several in shared.items():
            inside = tuple(self.kind[row] for row in several)
            if inside not in merged:
                merged[inside] = len(table)
                table.append(coalesced(tuple(self.kinds[number] for number in inside)))
            kinds[bisect_left(seqs, seq)] = merged[inside]
        return Part(self, group, rows, seqs, kinds, table if merged else self.kinds)

    def only(self, group: str, rank: int) -> Flight:
        """The operations of one group, by name or description, with another rank.

        It serves to compare processes of several worlds in a group that spans them, such as a weight sync.
        """
        wanted = {
            number
            for number, process_group in enumerate(self.groups)
            if group in (process_group.name, process_group.desc)
        }
        alone = replace(self, rank=rank, world_size=None, mentioned=(), status={}, handles={}, config=(),
                        groups=tuple(replace(process_group, members=()) for process_group in self.groups))  # fmt: skip
        return alone._with([row for row, number in enumerate(self.group) if number in wanted])

    def without(self, groups: Collection[str]) -> Flight:
        """The operations of all groups except those named, by the recorder's name."""
        left_out = {number for number, group in enumerate(self.groups) if group.name in groups}
        if not left_out:
            return self
        return self._with([row for row, number in enumerate(self.group) if number not in left_out])

    def _with(self, rows: list[int]) -> Flight:
        first = int(self.overflowed)  # rows are renumbered, since their gaps would look like an overflow
        columns: dict[str, Any] = {name: integers(getattr(self, name)[row] for row in rows) for name in INTEGERS}
        columns |= {name: bytes(getattr(self, name)[row] for row in rows) for name in FLAGS}
        return replace(self, **columns | {"record": integers(range(first, first + len(rows)))})


@dataclass(frozen=True)
class Part:
    """One rank's share in one group: its collectives by sequence number. Coalesced operations count as one."""

    flight: Flight
    group: int
    rows: array[int]  # last row of each sequence number
    seqs: array[int]  # ascending
    kinds: array[int]  # places in `table`
    table: Sequence[Kind]

    def at(self, seq: int) -> Kind | None:
        """What the rank did at a sequence number; None if its ring does not have it."""
        place = bisect_left(self.seqs, seq)
        return self.table[self.kinds[place]] if place < len(self.seqs) and self.seqs[place] == seq else None

    def after(self, seq: int) -> Part:
        """The share without the operations up to a sequence number."""
        first = bisect_left(self.seqs, seq + 1)
        rows, seqs, kinds = (column[first:] for column in (self.rows, self.seqs, self.kinds))
        return Part(self.flight, self.group, rows, seqs, kinds, self.table)

    @cached_property
    def done(self) -> bytes:
        """For each sequence number 1 if its operation is over, else 0."""
        return bytes(map(self.flight.done.__getitem__, self.rows))
