"""The content of flight recorder dumps, reduced and compared across ranks. Types only; ranks are global ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from harness.triage.evidence import Frame, Group

if TYPE_CHECKING:
    from harness.triage.flight.flight import Part


@dataclass(frozen=True)
class Collective:
    """One operation as the recorder of one rank has it."""

    group: str
    seq: int  # collective_seq_id (p2p_seq_id for point to point)
    op: str  # all_reduce, broadcast, all_gather, ...: the recorder's name without its backend prefix
    done: bool  # completed (NCCL) or retired (gloo)
    started: bool = True  # started on the device; gloo cannot tell, and says True
    p2p: bool = False
    sizes: tuple[tuple[int, ...], ...] = ()  # input sizes, then output sizes
    dtype: str = ""
    age_s: float | None = None  # seconds since it was enqueued, if it is known when the dump was taken
    timeout_s: float | None = None
    frames: tuple[Frame, ...] = ()  # where it was enqueued, innermost first; NCCL pickles only
    called: bool = False  # recorded, and not yet counted as enqueued: its host thread is inside the call


@dataclass(frozen=True)
class RankState:
    """Where one rank stands in one group. -1: nothing recorded."""

    rank: int
    enqueued: int = -1  # seq of the last operation enqueued
    completed: int = -1  # seq of the last operation done
    joint: int = -1  # seq of the last finished operation of those that end for no rank before every member has come
    pending: Collective | None = None  # the oldest operation that is not done
    last: Collective | None = None  # the last operation enqueued, done or not
    key: str = ""  # Process.key or the dump's name


@dataclass(frozen=True)
class Mismatch:
    """One seq of one group at which the ranks did different things. `values`: what was done -> the ranks that did
    it."""

    group: str
    seq: int
    field: str  # op, sizes, dtype
    values: dict[str, tuple[int, ...]]
    usual: str = ""  # what all sibling groups (same description and size) did there, if they agree


@dataclass(frozen=True)
class GroupState:
    """One group, over all ranks that have a dump."""

    group: Group
    ranks: dict[int, RankState]
    absent: tuple[int, ...] = ()  # members whose dump is missing
    silent: tuple[int, ...] = ()  # members with a dump in which this group does not occur
    mismatches: tuple[Mismatch, ...] = ()  # earliest first
    p2p: dict[int, tuple[Collective, ...]] = field(default_factory=dict)  # rank -> its unfinished sends and receives
    joined: bool = False  # processes of several worlds share the group, which has ranks of its own
    unsure: tuple[int, ...] = ()  # silent members whose ring has overflowed: the ring may have lost their operations
    shares: Mapping[int, Part] = field(default_factory=dict, compare=False, repr=False)  # rank -> all its operations

    @property
    def waiting(self) -> tuple[int, ...]:
        """Ranks with an operation that is not done."""
        return tuple(rank for rank, state in self.ranks.items() if state.pending is not None)


@dataclass(frozen=True)
class Habit:
    """What a rank always did after the operations that it did last (`times` times without exception), and what it does
    now.

    `counts`: operations in its recorder, by (description of the group, its size, name of the operation).
    """

    group: str
    op: str
    now_group: str
    now_op: str
    times: int
    cut: bool = False  # it left out the rest of a run of equal operations that it had begun
    counts: dict[tuple[str, int, str], int] = field(default_factory=dict)

    @property
    def kept(self) -> bool:
        return (self.group, self.op) == (self.now_group, self.now_op)

    def does_same_work(self, peer: Habit) -> bool:
        """Whether both ranks do the same work: the same operations, with counts that differ by an eighth at most.

        One rank may be a round behind, and its ring may hold a different part of the run.
        """
        pairs = [(mine, peer.counts.get(what, 0)) for what, mine in self.counts.items()]
        near = all(8 * abs(mine - its) <= max(mine, its, 16) for mine, its in pairs)
        return near and self.counts.keys() == peer.counts.keys()


@dataclass(frozen=True)
class Comparison:
    """All groups of one job. If `jobs` > 1 the dumps do not belong together, and `notes` say which belong to which
    job."""

    groups: tuple[GroupState, ...]
    ranks: tuple[int, ...]  # ranks that have a dump
    world_size: int | None = None
    jobs: int = 1
    versions: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()  # truncated files, versions that differ, rings too short to compare, ...
    missing: tuple[str, ...] = field(default=())  # "no recorder data from rank 3"
    absent: tuple[int, ...] = ()  # ranks below world_size, and members of groups, without a readable dump
    strays: tuple[str, ...] = ()  # dumps beside those of the job, which were left out, in words
    largest: tuple[str, ...] = ()  # names of the dumps of the job that has most, where there are several
    habits: dict[str, Habit] = field(default_factory=dict)  # `RankState.key` -> habit, for ranks that have one
    contradiction: str = ""  # how lines of a log beside the dumps contradict them, so that they were not used
    newest_ns: int = 0  # wall clock of the newest operation in any dump, by the clock of its host; 0 if none has a time
