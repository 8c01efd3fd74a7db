"""Reads what NCCL's watchdog in torch writes to a log when a collective times out, and what
TORCH_DISTRIBUTED_DEBUG=DETAIL writes when ranks run different collectives.

These lines give the counters of a flight recorder: which operation a rank waits in, and the last one that it enqueued
and completed. They become dumps in the recorder's own format, so that the same comparison reads them. Their form is
that of torch 2.0 to 2.13 (ProcessGroupNCCL.cpp, ProcessGroupWrapper.cpp).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Any, NamedTuple, TypeVar

from harness.triage.collect import redact
from harness.triage.evidence import DumpSignal, LogError
from harness.triage.flight.mismatches import DEFAULT
from harness.triage.pasted.incidents import NOWHERE, RESTART_S, Entry, Place, ends_of_earlier, seconds_of
from harness.triage.pasted.naming import LOG_DIR, NOBODY, Name, of_path
from harness.triage.pasted.text import MAX_TEXT, cut
from probes.limits import RANKS

T = TypeVar("T")
SEVERAL = "lines about timeouts are of several incidents and were not used: give the lines of one"
MAX_ENTRIES = 20_000  # ranks times groups of which lines are kept
MAX_LINES = 200_000  # about these; a rank writes a few in an incident
# Each line that is read has one of these.
WORDS = ("CCL", "enqueued work", "CollectiveFingerPrint", "entire process down")
_NUMBER = r"(-?\d{1,15})"
_GROUP = re.compile(r"\[PG (?:ID )?(\w{1,20}) (?:PG GUID ([\w:.-]{1,100}))?\(([\w:. -]{0,100})\) Rank (\d{1,7})\]")
_RANK = re.compile(r"\[Rank (\d{1,7})\]")
# Up to torch 2.0 without sizes. The backends of other devices (XCCL, HCCL) have the lines of NCCL's.
_TIMEOUT = re.compile(r"caught collective operation timeout: Work[A-Z]CCL\(SeqNum=(\d{1,15}), OpType=(\w{1,40}), "
                      r"(?:NumelIn=(\d{1,18}), NumelOut=(\d{1,18}))?")  # fmt: skip
# What it writes before it ends its process; with TORCH_NCCL_ASYNC_ERROR_HANDLING=0 it writes neither.
_ENDS = ("watchdog thread terminated with exception", "we are taking the entire process down")
_RAN = re.compile(r"ran for (\d{1,12}) milli")
_COUNTERS = "last enqueued"
_SIGNAL = re.compile(r"Received a dump signal due to a collective timeout from +rank (\d{1,7})")
_WITH_RANKS = "read the logs of the other ranks to the same time, and keep the prefix [rankN]: of their lines"
MAX_UNRANKED = 1_000  # lines that are kept
MAX_WRAPPED = 2_000  # characters of a line that is put together
_AFTERWARDS = ("frame #", "Exception raised from", "terminate called", "  what()", "Traceback")
_STATUS = re.compile(
    rf"last enqueued (?:[A-Z]CCL )?work: {_NUMBER}, last completed (?:[A-Z]CCL )?work: {_NUMBER}", re.I
)
# Up to torch 2.2 no comma stands between the number and the operation.
_PRINT = re.compile(r"Rank (\d{1,7}) is running collective: CollectiveFingerPrint\(SequenceNumber=(\d{1,15}),? ?"
                    r"OpType=(\w{1,40})(?:, TensorShape=\[([\d, ]{0,200})\])?")  # fmt: skip
# Names of the operations in the recorder, where the lower-case name is not its own.
_OPS = {"ALLREDUCE": "all_reduce", "ALLGATHER": "all_gather", "ALLTOALL": "all_to_all", "ALLTOALL_BASE": "all_to_all",
        "_ALLGATHER_BASE": "_all_gather_base", "_REDUCE_SCATTER_BASE": "_reduce_scatter_base"}  # fmt: skip


def _is_cut(line: str) -> bool:
    """Whether a line of torch's log ends within its sentence. The counters of torch 2.6 and later end without a full
    stop."""
    if "CCL.cpp:" not in line and "what():" not in line:
        return False
    return not (line.rstrip().endswith(".") or ("CCL work" not in line and _STATUS.search(line)))


def _rank_of(writer: Name, line: str) -> int | None:
    """The global rank of a line, by its prefix or its words; None where they name only a rank within a group."""
    group = _GROUP.search(line)
    place = group or _RANK.search(line)
    if writer.rank is not None or place is None or (group and group[3] not in ("", DEFAULT)):
        return writer.rank
    return int(place[place.re.groups])


def _without_rank(line: str) -> tuple[str, str]:
    """Of a line whose global rank is not known: who wrote it, and what it says, as the verb of a sentence. Empty where
    it is no line of the watchdog."""
    group, timeout, ran, status = (pattern.search(line) for pattern in (_GROUP, _TIMEOUT, _RAN, _STATUS))
    who = f"rank {group[4]} of {group[3] or group[1]}" if group else ""
    what = ""
    if timeout:
        waited = f"{int(ran[1]) / 1000:.0f} s " if ran else ""
        sizes = f"; sizes [{timeout[3]}] -> [{timeout[4]}]" if timeout[3] else ""
        what = f"waited {waited}in {_operation_name(timeout[2])} #{timeout[1]}{sizes}"
    counters = f"{_COUNTERS} #{status[1]}, last completed #{status[2]}" if status and "CCL" in line else ""
    return who, "; ".join(filter(None, (what, counters)))


class Group(NamedTuple):
    """A process group by torch's name for it, the same on all ranks, and its description, which others may share."""

    uid: str
    desc: str


UNNAMED = Group("", "")
NOT_NAMED = "group without a name"  # in place of the name of a group


# Operations that count in a series of their own, which the same words of a line give: such a group is left out.
_POINT_TO_POINT = frozenset({"SEND", "RECV", "COALESCED"})


@dataclass(frozen=True)
class _Operation:
    seq: int
    op: str
    sizes_in: tuple[int, ...]  # empty where the line has none
    sizes_out: tuple[int, ...]


@dataclass(frozen=True)
class _Counted:
    """What a line added to a table of the watchdog, and where that line stands."""

    place: Place
    table: dict[tuple[int, Group], set[Any]]
    key: tuple[int, Group]
    value: object
    ran_s: float  # how long the operation had run; infinite if the line does not say


@dataclass
class Watchdog:
    """Takes the lines of a log, of all ranks in any order."""

    waiting: dict[tuple[int, Group], set[_Operation]] = field(default_factory=dict)  # (rank, group) -> operations
    counters: dict[tuple[int, Group], set[tuple[int, int]]] = field(default_factory=dict)  # -> (enqueued, completed)

    counted: dict[int, set[Group]] = field(default_factory=dict)  # rank -> groups of which it wrote counters

    ended: set[int] = field(default_factory=set)  # ranks whose process it ends

    signals: dict[int, DumpSignal] = field(default_factory=dict)  # by the rank that got one, its last

    unranked: list[LogError] = field(default_factory=list)  # lines of which no global rank is known

    waited_s: float = 0.0  # the longest time that an operation ran before it was given up
    earlier_ends: list[float] = field(default_factory=list)  # of incidents before the last one, which are left out
    earlier_lines: dict[str, int] = field(default_factory=dict)  # file -> number of the last line about one of them
    _counted: list[_Counted] = field(default_factory=list)
    _endings: list[tuple[Place, int]] = field(default_factory=list)
    _signals: list[tuple[Place, DumpSignal]] = field(default_factory=list)
    _place: Place = NOWHERE  # of the line that is taken
    _file: str = ""
    _of_file: Name = NOBODY
    _wrapped: tuple[int, Name, str] | None = None  # a line of torch's log that seems to go on in the next one

    def begin(self, file: str) -> None:
        """Begin a file."""
        # Its folder may be of a node, or of a job.
        self._file, self._of_file = file, of_path(file if LOG_DIR.fullmatch(file) else PurePath(file).name)

    def feed(self, number: int, writer: Name, line: str) -> None:
        """Take the next line. `number`: from 1 in its file; `writer`: whom its prefix names. A line that a terminal
        wrapped is put together."""
        if self._wrapped is not None:
            at, before, begin = self._wrapped
            goes_on = writer is NOBODY and line[:1] not in ("", "[") and not line.startswith(_AFTERWARDS)
            number, writer, line = (at, before, begin + line) if goes_on else (number, writer, line)
            self._wrapped = None
            if not goes_on:
                self._take(at, before, begin)
        if len(line) < MAX_WRAPPED and _is_cut(line):
            self._wrapped = number, writer, line
        else:
            self._take(number, writer, line)

    def close(self) -> None:
        """End a file."""
        if self._wrapped is not None:
            self._take(*self._wrapped)
        self._wrapped = None

    def _take(self, number: int, writer: Name, line: str) -> None:
        if not any(words in line for words in WORDS) or self.entries > MAX_ENTRIES or len(self._counted) > MAX_LINES:
            return
        self._place = Place(self._file, number, seconds_of(line))
        prints = _PRINT.findall(line)
        for rank, _, op, shape in prints:
            sizes = tuple(int(size) for size in re.findall(r"\d{1,18}", shape))
            # They met in one check. That their own counters differ is a part of the mismatch, not another place.
            self._add(self.waiting, int(rank), UNNAMED, _Operation(int(prints[0][1]), op, sizes, sizes))
        group = _GROUP.search(line)
        its_group = Group(group[2] or group[1], group[3]) if group else UNNAMED
        rank = _rank_of(writer, line)
        rank = self._of_file.rank if rank is None else rank
        if rank is None:
            self._take_unranked(number, line)
            return
        if any(words in line for words in _ENDS):
            self.ended.add(rank)
            self._endings.append((self._place, rank))
        ran = _RAN.search(line)
        if ran:
            self.waited_s = max(self.waited_s, int(ran[1]) / 1000)
        if timeout := _TIMEOUT.search(line):
            size_in, size_out = ((int(size),) if size else () for size in (timeout[3], timeout[4]))
            operation = _Operation(int(timeout[1]), timeout[2], size_in, size_out)
            self._add(self.waiting, rank, its_group, operation, int(ran[1]) / 1000 if ran else float("inf"))
        if group and (status := _STATUS.search(line)):
            self._add(self.counters, rank, its_group, (int(status[1]), int(status[2])))
            self.counted.setdefault(rank, set()).add(its_group)
            if (signal := _SIGNAL.search(line)) and max(rank, int(signal[1])) <= RANKS:
                name = its_group.desc or its_group.uid
                self.signals[rank] = DumpSignal(rank, int(signal[1]), name, int(status[1]), int(status[2]))
                self._signals.append((self._place, self.signals[rank]))

    def _take_unranked(self, number: int, line: str) -> None:
        """Take a line of a process whose rank is not known, and the counters that follow what it waited in."""
        who, what = _without_rank(line)
        before = self.unranked[-1] if self.unranked and self.unranked[-1].file == self._file else None
        if before is not None and what.startswith(_COUNTERS) and _COUNTERS not in before.what:
            self.unranked[-1] = replace(before, what=f"{before.what}; {what}", role=who or before.role)
        elif what and len(self.unranked) < MAX_UNRANKED:
            text = redact.text(cut(line.strip(), MAX_TEXT))
            self.unranked.append(LogError(self._file, number, what, text, role=who, fix=_WITH_RANKS, echo=True))

    def _add(
        self, table: dict[tuple[int, Group], set[Any]], rank: int, group: Group, value: object, ran_s: float = 0.0
    ) -> None:
        if rank <= RANKS:
            table.setdefault((rank, group), set()).add(value)
            self._counted.append(_Counted(self._place, table, (rank, group), value, ran_s))

    def keep_last_incident(self) -> None:
        """Leave out the lines of earlier incidents, after which the job was started again, where times tell them
        apart."""
        entries = [
            Entry(each.place.at_s, *each.key, each.value if each.table is self.waiting else None, each.ran_s)
            for each in self._counted
            if each.place.at_s is not None
        ]
        if len(entries) < len(self._counted):
            return
        self.earlier_ends = ends_of_earlier(entries)
        if not self.earlier_ends:
            return
        for table in (self.waiting, self.counters, self.counted):
            table.clear()
        self.waited_s = 0.0
        for each in self._counted:
            if self._is_earlier(each.place):
                file, number = each.place.file, each.place.number
                self.earlier_lines[file] = max(number, self.earlier_lines.get(file, 0))
                continue
            each.table.setdefault(each.key, set()).add(each.value)
            if each.table is self.counters:
                self.counted.setdefault(each.key[0], set()).add(each.key[1])
            elif each.ran_s < float("inf"):
                self.waited_s = max(self.waited_s, each.ran_s)
        self.ended = {rank for place, rank in self._endings if not self._is_earlier(place)}
        self.signals = {signal.rank: signal for place, signal in self._signals if not self._is_earlier(place)}

    def _is_earlier(self, place: Place) -> bool:
        """Whether a line is of an earlier incident. A line without a time is taken for one."""
        return place.at_s is None or place.at_s <= self.earlier_ends[-1] + RESTART_S / 2

    @property
    def entries(self) -> int:
        """How many ranks and groups it has lines of."""
        return len(self.waiting) + len(self.counters)

    @property
    def several(self) -> bool:
        """Whether a rank has lines of several incidents, such as before and after a restart."""
        return any(len(values) > 1 for table in (self._in_groups(), self.counters) for values in table.values())

    def dumps(self) -> dict[int, dict[str, Any]]:
        """Rank -> its flight recorder dump; empty without such lines, or if they are of several incidents."""
        if self.several:
            return {}
        waiting, counters = _by_group(self._in_groups()), _by_group(self.counters)
        dumps: dict[int, dict[str, Any]] = {}
        for group in sorted({*waiting, *counters}):
            operations, counted = waiting.get(group, {}), counters.get(group, {})
            if any(operation.op in _POINT_TO_POINT for operation in operations.values()):
                continue
            members = _members(operations, counted)  # in the first dump only: their text is as long as they are many
            for rank in sorted({*operations, *counted}):
                dump = dumps.setdefault(rank, {"version": "2.10", "pg_config": {}, "pg_status": {}, "entries": []})
                number, name = len(dump["pg_config"]), group.uid or NOT_NAMED
                config = {"name": name, "desc": group.desc}
                dump["pg_config"][name] = config | ({"ranks": members} if members else {})
                members = ""
                if rank in counted:
                    enqueued, completed = counted[rank]
                    dump["pg_status"][str(number)] = {
                        "last_enqueued_collective": enqueued, "last_started_collective": -1,
                        "last_completed_collective": completed}  # fmt: skip
                dump["entries"] += [_entry(number, group, operations[rank])] if rank in operations else []
        return dumps

    def _in_groups(self) -> dict[tuple[int, Group], set[_Operation]]:
        """The operations, each with the group that the rank's counters name."""
        table: dict[tuple[int, Group], set[_Operation]] = {}
        for (rank, group), operations in self.waiting.items():
            table.setdefault((rank, self._group_of(rank, group)), set()).update(operations)
        return table

    def _group_of(self, rank: int, group: Group) -> Group:
        """The group of an operation whose line names none: the only one of which the rank wrote counters."""
        named = self.counted.get(rank, set())
        return next(iter(named)) if group == UNNAMED and len(named) == 1 else group


def _by_group(table: Mapping[tuple[int, Group], set[T]]) -> dict[Group, dict[int, T]]:
    """The table, in which each rank has one value in a group, by group and rank."""
    grouped: dict[Group, dict[int, T]] = {}
    for (rank, group), values in table.items():
        grouped.setdefault(group, {})[rank] = next(iter(values))
    return grouped


def _members(operations: Mapping[int, _Operation], counted: Mapping[int, tuple[int, int]]) -> str:
    """The members of a group, as torch writes them, as far as a log shows them; else empty.

    A log does not list them. It shows them in two cases: as many ranks wait in an operation as its sizes say that the
    group has, or a rank that wrote counters never enqueued what another waits in. Otherwise the missing one may not be
    in the log.
    """
    sizes = {_group_size(operation) for operation in operations.values()}
    if len(operations) > 1 and sizes == {len(operations)}:
        return str(sorted(operations))
    pending = max((operation.seq for operation in operations.values()), default=0)
    return str(sorted(counted)) if any(enqueued < pending for enqueued, _ in counted.values()) else ""


def _group_size(operation: _Operation) -> int:
    """How many ranks the group of an operation has, by its sizes; 0 for operations whose sizes do not depend on it.

    torch counts the elements of all input and of all output tensors of the rank (ProcessGroupNCCL.cpp).
    """
    taken, given = sum(operation.sizes_in), sum(operation.sizes_out)
    if "SCATTER" in operation.op:
        taken, given = given, taken
    elif "ALLGATHER" not in operation.op:
        return 0
    return given // taken if taken and given % taken == 0 else 0


def _operation_name(op: str) -> str:
    """The recorder's name of an operation of torch's log."""
    return _OPS.get(op, op.lower())


def _entry(number: int, group: Group, operation: _Operation) -> dict[str, Any]:
    """An operation that is not done, as the recorder writes it."""
    return {
        "frames": [], "record_id": 0, "pg_id": number, "process_group": [group.uid or NOT_NAMED, group.desc],
        "collective_seq_id": operation.seq, "p2p_seq_id": 0, "op_id": 0,
        "profiling_name": f"nccl:{_operation_name(operation.op)}", "time_created_ns": 0,
        "input_sizes": [list(operation.sizes_in)] if operation.sizes_in else [],
        "output_sizes": [list(operation.sizes_out)] if operation.sizes_out else [], "state": "scheduled",
        "time_discovered_started_ns": None, "time_discovered_completed_ns": None, "retired": False,
        "timeout_ms": 0, "is_p2p": False,
    }  # fmt: skip
