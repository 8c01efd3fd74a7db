"""One rank's flight recorder, held as columns: 2,000 operations take 90 kB instead of 2,000 dictionaries."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from harness.errors import BadInput
from harness.triage.evidence import Frame, Group
from harness.triage.flight.model import Collective

Sizes = tuple[tuple[int, ...], ...]


class Status(NamedTuple):
    """torch's pg_status of one group: the last collective_seq_id that this rank enqueued, started and completed.

    It outlives the ring, and dumps of active operations only. NCCL alone keeps it (torch 2.13: gloo writes a number
    that does not fit its operations)."""

    enqueued: int
    started: int
    completed: int


class FlightError(BadInput):
    """A file that cannot be read as a flight recorder dump: cut short, damaged, hostile, too large, gone."""


class NotADump(FlightError):
    """A file that never was a flight recorder dump."""


class Kind(NamedTuple):
    """What an operation is, apart from when: equal operations of one rank share one."""

    op: str  # without its backend prefix; "send 0->1" keeps its peers, which are ranks in the group
    inputs: Sizes
    outputs: Sizes
    input_dtypes: tuple[str, ...]
    output_dtypes: tuple[str, ...]


def _none() -> npt.NDArray[np.int64]:
    return np.zeros(0, np.int64)


@dataclass(frozen=True, eq=False)
class Flight:
    """What one process's recorder held. Arrays have one item an operation, oldest first.

    `groups` are the process groups that occur in it, `members` empty where the dump does not say (always on gloo);
    the column `group` points into it, `kind` into `kinds`, `stack` into `stacks` (-1: no frames). `readable` is False
    for a rank whose file is there and cannot be used: `notes` say why.
    """

    name: str  # of the file, or of the process
    rank: int | None = None  # global rank; None where neither the name nor the dump says
    version: str = ""  # of the dump's format: 2.10 is torch 2.13's
    backend: str = ""  # nccl, gloo, ...; empty without operations
    library: str = ""  # version of the communication library
    series: str = ""  # what the names of one job's files have in common: "nccl_trace_rank_"
    world_size: int | None = None
    mentioned: tuple[int, ...] = ()  # ranks that its groups name, gloo's nameless entry included: the job has these
    groups: tuple[Group, ...] = ()
    kinds: tuple[Kind, ...] = ()
    stacks: tuple[tuple[Frame, ...], ...] = ()  # innermost first
    record: npt.NDArray[np.int64] = field(default_factory=_none)  # number in the ring
    group: npt.NDArray[np.int64] = field(default_factory=_none)
    seq: npt.NDArray[np.int64] = field(default_factory=_none)  # collective_seq_id; p2p_seq_id point to point
    kind: npt.NDArray[np.int64] = field(default_factory=_none)
    stack: npt.NDArray[np.int64] = field(default_factory=_none)
    created_ns: npt.NDArray[np.int64] = field(default_factory=_none)  # wall clock of the rank's host
    timeout_ms: npt.NDArray[np.int64] = field(default_factory=_none)
    done: npt.NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))
    started: npt.NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))
    p2p: npt.NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))
    status: dict[str, Status] = field(default_factory=dict)  # torch's number of a group in this process -> pg_status
    handles: dict[str, str] = field(default_factory=dict)  # such a number -> the group's name, by the operations held
    config: tuple[Group, ...] = ()  # all groups of pg_config, where `status` has a number that `handles` does not
    # Wall clock at the moment of the dump of a live process: 0 where that clock cannot be relied on; None of a file
    # that lay about.
    taken_ns: int | None = None
    readable: bool = True
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.seq)

    @property
    def overflowed(self) -> bool:
        """Older operations are gone: overwritten in the ring, or left out of a dump of active ones only."""
        count = len(self)
        return bool(count) and (int(self.record[0]) > 0 or int(self.record[-1]) - int(self.record[0]) != count - 1)

    def standing(self) -> dict[str, Status]:
        """Group name -> its pg_status. A number that no held operation explains is torch's count of this rank's NCCL
        groups in the order in which they were made, as their names are; used only where all known numbers agree."""
        if not self.status:
            return {}
        mine = [one for one in self.config if self.rank in one.members and one.name.isdecimal()]
        by_order = {str(at): one.name for at, one in enumerate(sorted(mine, key=lambda one: int(one.name)))}
        if any(by_order.get(number, name) != name for number, name in self.handles.items()):
            by_order = {}
        names = {**by_order, **self.handles}
        return {names[number]: status for number, status in self.status.items() if number in names}

    def collective(self, row: int) -> Collective:
        """One operation in full."""
        kind, created = self.kinds[self.kind[row]], int(self.created_ns[row])
        timeout, stack = int(self.timeout_ms[row]), int(self.stack[row])
        aged = bool(self.taken_ns) and created > 0
        return Collective(
            group=self.groups[self.group[row]].name,
            seq=int(self.seq[row]),
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

    def rows(self, group: int, *, p2p: bool = False) -> npt.NDArray[np.intp]:
        """Rows of one of `groups`: its collectives, or its point-to-point operations."""
        return np.flatnonzero((self.group == group) & (self.p2p == p2p))

    def only(self, group: str, rank: int) -> Flight:
        """What it holds of one group (by the recorder's name or its description), under another rank: to compare
        processes of several worlds in a group that spans them, such as a weight sync of trainers and engines."""
        wanted = [number for number, one in enumerate(self.groups) if group in (one.name, one.desc)]
        rows = np.flatnonzero(np.isin(self.group, wanted))
        alone = replace(self, rank=rank, world_size=None, mentioned=(), status={}, handles={}, config=(),
                        groups=tuple(replace(one, members=()) for one in self.groups))  # fmt: skip
        return alone._with(rows)

    def without(self, groups: Collection[str]) -> Flight:
        """What it holds of all other groups (by the recorder's name)."""
        held = [number for number, one in enumerate(self.groups) if one.name in groups]
        return self._with(np.flatnonzero(~np.isin(self.group, held))) if held else self

    def _with(self, rows: npt.NDArray[np.intp]) -> Flight:
        columns = ("group", "seq", "kind", "stack", "created_ns", "timeout_ms", "done", "started", "p2p")
        record = np.arange(len(rows)) + int(self.overflowed)  # the ring's own gaps would look like an overflow
        return replace(self, record=record, **{name: getattr(self, name)[rows] for name in columns})
