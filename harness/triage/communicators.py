"""What NCCL's RAS says of a job's communicators: how many collectives each rank has launched, and who does not answer.

The form of its JSON is that of NCCL 2.28.7 to 2.31 (src/ras/client_support.cc). It has every rank. RAS reads the counts
of a running job one after the other, so that two counts may differ although nothing hangs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec

from harness.triage.evidence import Ranks
from probes.limits import WHOLE

MAX_PID = 1 << 32  # Linux gives pids below 2**22, other systems below 2**32
_LIBRARY_OK = (0, 7)  # ncclSuccess and ncclInProgress
_ERRORS = {1: "Unhandled CUDA error", 2: "System error", 3: "Internal error", 4: "Invalid argument",
           5: "Invalid usage", 6: "Remote process error"}  # fmt: skip
Pid = Annotated[int, msgspec.Meta(ge=-1, le=MAX_PID)]
Count = Annotated[int, msgspec.Meta(ge=0, le=WHOLE)]
Text = Annotated[str, msgspec.Meta(max_length=100)]


@dataclass(frozen=True)
class Member:
    """A rank of a communicator and its process. `pid`: 0 where RAS does not know it."""

    rank: int
    pid: int = 0
    host: str = ""

    @property
    def process(self) -> tuple[str, int]:
        """The address of its host, and its pid."""
        return self.host, self.pid

    def __str__(self) -> str:
        return f"rank {self.rank} (pid {self.pid} on {self.host})" if self.pid else f"rank {self.rank}"


@dataclass(frozen=True)
class Share:
    """Ranks of a communicator that share a value. RAS's text lists the members of small shares only.

    value: how many operations they have launched, or their status, or the error that they report.
    """

    value: int | str
    size: int
    members: tuple[Member, ...] = ()


@dataclass(frozen=True)
class Communicator:
    """A communicator whose ranks do not agree, or some of whose ranks do not answer.

    counts: operation -> shares of the ranks, for operations whose counts differ.
    states: shares of the ranks, if their statuses differ.
    errors: ranks that report an error of NCCL.
    silent: ranks whose process does not answer RAS.
    """

    name: str
    size: int
    counts: Mapping[str, tuple[Share, ...]]
    states: tuple[Share, ...] = ()
    errors: tuple[Share, ...] = ()
    silent: tuple[Member, ...] = ()


@dataclass(frozen=True)
class Lack:
    """Details that RAS's text says there are, and that were not read of it.

    communicator: or the group of communicators, where no more is known.
    kind: MISMATCH, INCOMPLETE or ERROR.
    operation: whose counts differ, if that is known.
    ranks: of how many there is no detail; 0 where the details of all are lacking.
    """

    communicator: str
    kind: str
    operation: str = ""
    ranks: int = 0


@dataclass(frozen=True)
class Status:
    """One answer of RAS.

    communicators: how many there are.
    uneven: those whose ranks do not agree or do not answer.
    dead, silent: processes, as (host, pid), that RAS considers dead, or that did not answer it this time.
    cut: why the answer is not complete; empty if it is.
    lacks: what is not read of it.
    """

    communicators: int
    uneven: tuple[Communicator, ...] = ()
    dead: frozenset[tuple[str, int]] = frozenset()
    silent: frozenset[tuple[str, int]] = frozenset()
    cut: str = ""
    lacks: tuple[Lack, ...] = ()


class _State(msgspec.Struct):
    init_state: int = 0
    async_error: int = 0
    finalize_called: bool = False
    destroy_flag: bool = False
    abort_flag: bool = False
    unresponsive: bool = False
    considered_dead: bool = False


class _Rank(msgspec.Struct):
    rank: Ranks
    host: Text = ""
    pid: Pid = -1
    status: _State = msgspec.field(default_factory=_State)
    collective_counts: dict[Text, Count] = msgspec.field(default_factory=dict)

    def member(self) -> Member:
        return Member(self.rank, max(self.pid, 0), self.host if self.pid > 0 else "")


class _Communicator(msgspec.Struct):
    size: Ranks
    hash: Text = ""
    ranks: list[_Rank] = msgspec.field(default_factory=list)
    missing_ranks: list[_Rank] = msgspec.field(default_factory=list)


UNCOUNTED = "the answer of NCCL RAS has no operation counts: who is behind is not known"


class _Answer(msgspec.Struct):
    communicators: list[_Communicator]


def of_json(answer: Any) -> Status:
    """The status in RAS's decoded JSON. Raises ValueError where it is none, or has a number out of bounds."""
    communicators = msgspec.convert(answer, _Answer).communicators
    missing = [rank for communicator in communicators for rank in communicator.missing_ranks]
    dead = frozenset(rank.member().process for rank in missing if rank.status.considered_dead)
    silent = frozenset(rank.member().process for rank in missing if rank.status.unresponsive)
    every = (_communicator(communicator) for communicator in communicators)
    uneven = tuple(part for part in every if part.counts or part.states or part.errors or part.silent)
    counted = any(rank.collective_counts for communicator in communicators for rank in communicator.ranks)
    is_uncounted = any(communicator.ranks for communicator in communicators) and not counted
    return Status(len(communicators), uneven, dead, silent - dead, UNCOUNTED if is_uncounted else "")


def _communicator(communicator: _Communicator) -> Communicator:
    ranks = communicator.ranks
    operations = dict.fromkeys(operation for rank in ranks for operation in rank.collective_counts)
    counts = {
        operation: _shares((rank.member(), rank.collective_counts.get(operation, 0)) for rank in ranks)
        for operation in operations
    }
    gone = [rank for rank in communicator.missing_ranks if not _silent(rank)]
    states = _shares([(rank.member(), _state(rank)) for rank in ranks] + [(rank.member(), "NOCOMM") for rank in gone])
    codes = ((rank, code) for rank in ranks for code in {rank.status.init_state, rank.status.async_error})
    errors = _shares(
        (rank.member(), _ERRORS.get(code, "Unexpected error")) for rank, code in codes if code not in _LIBRARY_OK
    )
    return Communicator(
        communicator.hash.removeprefix("0x"),
        communicator.size,
        {operation: shares for operation, shares in counts.items() if len(shares) > 1},
        states if len(states) > 1 else (),
        errors,
        tuple(rank.member() for rank in communicator.missing_ranks if _silent(rank)),
    )


def _silent(rank: _Rank) -> bool:
    return rank.status.unresponsive or rank.status.considered_dead


def _state(rank: _Rank) -> str:
    status = rank.status
    if status.abort_flag:
        return "ABORT"
    if status.finalize_called or status.destroy_flag:
        return "FINALIZE"
    return "RUNNING" if status.init_state == 0 else "INIT"


def _shares(values: Iterable[tuple[Member, int | str]]) -> tuple[Share, ...]:
    """The ranks by their value, the largest share first."""
    grouped: dict[int | str, list[Member]] = {}
    for member, value in values:
        grouped.setdefault(value, []).append(member)
    shares = (Share(value, len(members), tuple(members)) for value, members in grouped.items())
    return tuple(sorted(shares, key=lambda share: -share.size))
