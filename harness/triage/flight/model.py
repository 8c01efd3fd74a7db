"""What flight recorder dumps say, reduced and compared across ranks. Types only; ranks are global ranks."""

from __future__ import annotations

from dataclasses import dataclass, field

from harness.triage.evidence import Frame, Group


@dataclass(frozen=True)
class Collective:
    """One operation as one rank's recorder has it."""

    group: str
    seq: int  # collective_seq_id (p2p_seq_id for point to point)
    op: str  # all_reduce, broadcast, all_gather, ...: the recorder's name without its backend prefix
    done: bool  # completed (NCCL) or retired (gloo)
    started: bool = True  # on the device; gloo cannot tell and says True
    p2p: bool = False
    sizes: tuple[tuple[int, ...], ...] = ()  # input sizes, then output sizes
    dtype: str = ""
    age_s: float | None = None  # since it was enqueued, where the dump says when it was taken
    timeout_s: float | None = None
    frames: tuple[Frame, ...] = ()  # where it was enqueued, innermost first; NCCL pickles only


@dataclass(frozen=True)
class RankState:
    """Where one rank stands in one group. -1: nothing recorded."""

    rank: int
    enqueued: int = -1  # seq of the last operation enqueued
    completed: int = -1  # seq of the last operation done
    joint: int = -1  # seq of the last operation done of those that end for nobody before every member has come
    pending: Collective | None = None  # the oldest that is not done
    last: Collective | None = None  # the last enqueued, done or not
    key: str = ""  # Process.key or the dump's name


@dataclass(frozen=True)
class Mismatch:
    """At one seq of one group the ranks did not do the same thing. `values`: what -> the ranks that did it."""

    group: str
    seq: int
    field: str  # op, sizes, dtype
    values: dict[str, tuple[int, ...]]
    usual: str = ""  # the one of `values` that all sibling groups (same description and size) did there, if one


@dataclass(frozen=True)
class GroupState:
    """One group over all the ranks that have a dump."""

    group: Group
    ranks: dict[int, RankState]
    absent: tuple[int, ...] = ()  # members whose dump is missing
    silent: tuple[int, ...] = ()  # members with a dump in which this group does not occur
    mismatches: tuple[Mismatch, ...] = ()  # earliest first
    p2p: dict[int, tuple[Collective, ...]] = field(default_factory=dict)  # sends and receives of a rank not done
    joined: bool = False  # its ranks are numbers of its own: processes of several worlds that name one group
    unsure: tuple[int, ...] = ()  # silent members whose ring has overflowed: they may have taken part long ago

    @property
    def waiting(self) -> tuple[int, ...]:
        """Ranks with an operation that is not done."""
        return tuple(rank for rank, state in self.ranks.items() if state.pending is not None)


@dataclass(frozen=True)
class Habit:
    """What a rank did `times` times out of as many after the operations that it did last, and what it does now.
    `counts`: of everything that its recorder holds, by name and by the description and size of the group."""

    group: str
    op: str
    now_group: str
    now_op: str
    times: int
    cut: bool = False  # what it left out is the rest of a run of equal operations: it had begun with it
    counts: dict[tuple[str, int, str], int] = field(default_factory=dict)

    @property
    def kept(self) -> bool:
        return (self.group, self.op) == (self.now_group, self.now_op)

    def does_same_work(self, peer: Habit) -> bool:
        """Whether both do the same work: the same operations, as often but for an eighth. One may be a round behind,
        and its ring may hold another part of it."""
        pairs = [(mine, peer.counts.get(what, 0)) for what, mine in self.counts.items()]
        near = all(8 * abs(mine - its) <= max(mine, its, 16) for mine, its in pairs)
        return near and self.counts.keys() == peer.counts.keys()


@dataclass(frozen=True)
class Comparison:
    """All groups of one job. `jobs` > 1: the dumps cannot belong together, and `notes` say which ones are."""

    groups: tuple[GroupState, ...]
    ranks: tuple[int, ...]  # that have a dump
    world_size: int | None = None
    jobs: int = 1
    versions: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()  # truncated files, versions that differ, rings too short to compare, ...
    missing: tuple[str, ...] = field(default=())  # "no recorder data from rank 3"
    absent: tuple[int, ...] = ()  # ranks below world_size, and members of groups, without a readable dump
    habits: dict[str, Habit] = field(default_factory=dict)  # by `RankState.key`, of ranks that have one
