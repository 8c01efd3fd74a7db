"""The end of each process's journal (D/events/*.jsonl), read backwards.

A journal may have a million events, so only three parts are decoded: the first line, the `group` events, and the last
stretch. Group events are found by their bytes, at 2 GB/s; each byte is searched once, however many looks there are.
Damage costs only the damaged line.
"""

from __future__ import annotations

import dataclasses
import os
import re
import socket
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from harness.triage.collect import redact
from harness.triage.evidence import Call, Group, Journal
from probes.errors import FULL_SUFFIX
from probes.format import EVENTS, FormatError, checked_open, decode_line
from probes.limits import RANKS, bounded
from probes.lines import check_tail
from probes.redaction import MAX_TEXT

TAIL_BYTES = 1 << 20  # about 5,000 events; more if the last event alone is larger
MAX_EVENT = 64 << 20  # of a larger event only number, time and kind are read
SCAN_BYTES = 1 << 30  # bytes of one journal that one look scans
BLOCK = 8 << 20  # a longer line cannot be a group: 100,000 members take 0.6 MiB
CALLS, ERRORS, MAX_GROUPS = 20, 20, 4_096
MAX_SCANS = 4_096  # journals whose groups are remembered between looks
LONGEST = 4 * MAX_TEXT  # characters of a message that are scrubbed; fewer are shown
_HEAD = re.compile(rb'\{"seq":(\d+),"t_ns":(\d+),"kind":"(\w+)"')


BUSY_S = 1.0  # wait for an earlier look that still scans this journal; a scan takes 0.5 s per GB
REUSE_S = 2.0  # a journal older than its process by more belongs to an earlier process of that pid


@dataclass(frozen=True)
class Opening:
    """The first line of a journal: which process wrote it.

    `start_ticks`: start of the process in ticks since boot; 0 if not recorded. `opened_ns`: monotonic time of its host.
    """

    path: Path
    host: str
    pid: int
    start_ticks: int
    opened_ns: int
    wall_ns: int = 0  # Unix time of the same moment, by the clock as it was set then; 0 if not recorded

    def by(self, start_ticks: int, age_s: float, now_ns: int) -> bool:
        """Whether the process of this pid that started at `start_ticks`, `age_s` ago, wrote the journal, and not an
        earlier one."""
        return same_process(self.start_ticks, self.opened_ns, start_ticks, age_s, now_ns)


def same_process(recorded_ticks: int, opened_ns: int, start_ticks: int, age_s: float, now_ns: int) -> bool:
    """Whether a journal belongs to the process that started at `start_ticks`, `age_s` ago.

    The recorded start decides; without one, the age of the journal. Both clocks are monotonic, so setting the wall
    clock neither hides a journal nor assigns one to the wrong process.
    """
    if recorded_ticks and start_ticks:
        return recorded_ticks == start_ticks
    return not start_ticks or -REUSE_S <= (now_ns - opened_ns) / 1e9 <= age_s + REUSE_S


@dataclass(frozen=True)
class Recording:
    """One journal and its process. `rank` is global, and set if the process belongs to a group of torch.distributed."""

    host: str
    pid: int
    roles: tuple[str, ...]  # roles in its journals, latest first
    journal: Journal
    rank: int | None = None
    world_size: int | None = None
    opened_ns: int = 0  # monotonic time of its host
    start_ticks: int = 0  # start of its process, 0 unknown
    environ: Mapping[str, str] = field(default_factory=dict)  # as Process.environ
    ppid: int = 0  # pid of its parent when it started, 0 if not recorded


def files(directory: Path) -> list[Path]:
    """The journals of a run or watch directory. Only regular files: a pipe never ends."""
    return sorted(file for file in (directory / EVENTS).glob("*.jsonl") if os.path.isfile(file))


def owners(paths: Iterable[Path], here: str) -> tuple[dict[tuple[str, int], list[Opening]], list[str]]:
    """(host, pid) -> the journals of that process, by their first lines alone; and notes about files without one."""
    openings: dict[tuple[str, int], list[Opening]] = {}
    notes = []
    for file in paths:
        try:
            with open(file, "rb") as stream:
                opening = _opening(stream)
            journal_opening = Opening(
                file, str(opening.get("host") or here), opening["pid"], opening["start_ticks"], opening["t_ns"],
                opening["wall_ns"],
            )  # fmt: skip
            openings.setdefault((journal_opening.host, journal_opening.pid), []).append(journal_opening)
        except OSError as error:
            notes.append(f"{EVENTS}/{file.name} cannot be read: {error.strerror}")
        except (FormatError, KeyError, TypeError, ValueError):
            notes.append(f"{EVENTS}/{file.name} is not a journal: its first line is damaged or missing")
    return openings, notes


def read(paths: Iterable[Path], now_ns: Mapping[str, int]) -> tuple[dict[tuple[str, int], Recording], list[str]]:
    """Read what each process recorded: {(host, pid): Recording}, and notes about damage.

    A process may have several journals. Open ones are read as one; of those that it closed earlier only the groups
    count. `now_ns`: host -> its CLOCK_MONOTONIC, now for this host and at the last beat for another. For a host that is
    missing, ages count from the last event of the journal, because wall clocks can be set and differ between hosts.
    """
    recordings: dict[tuple[str, int], Recording] = {}
    notes = []
    for file in paths:
        try:
            recording = _recording(file, now_ns)
        except OSError as error:
            notes.append(f"{EVENTS}/{file.name} cannot be read: {error.strerror}")
            continue
        except (FormatError, KeyError, TypeError, ValueError):
            notes.append(f"{EVENTS}/{file.name} is not a journal: its first line is damaged or missing")
            continue
        key = recording.host, recording.pid
        before = recordings.get(key)
        recordings[key] = (
            recording if before is None else _joined(*sorted((before, recording), key=lambda each: -each.opened_ns))
        )
    return recordings, notes


def _opening(stream: BinaryIO) -> dict[str, Any]:
    """The first line of a journal, with optional fields filled in. Raises FormatError, ValueError or TypeError."""
    opening = checked_open(decode_line(stream.readline(BLOCK)))
    optional = {"wall_ns": 0, "world_size": 1, "start_ticks": 0}
    opening = {**opening, **{name: int(opening.get(name) or value) for name, value in optional.items()}}
    bounded(opening["world_size"], RANKS, "world_size")
    return opening


def _recording(file: Path, clocks: Mapping[str, int]) -> Recording:
    with open(file, "rb") as stream:
        opening = _opening(stream)
        host, pid, role = str(opening.get("host") or socket.gethostname()), opening["pid"], opening["role"]
        scan = _scanned(stream, opening["t_ns"])
        tail = list(_tail(stream))
    last = tail[-1] if tail else opening
    now_ns = clocks.get(host, last["t_ns"])
    calls, errors, span, closed, closing_error, stats = [], [], "", False, "", {}
    for event in tail:
        age, kind = _age(now_ns, event["t_ns"]), event["kind"]
        if kind == "span":
            span = str(event.get("name", ""))
        if kind == "group":
            scan.add(event)
        if kind == "engine_stats":
            stats = redact.fields({key: value for key, value in event.items() if key not in ("seq", "t_ns", "kind")})
        if kind in ("call", "sync"):
            calls.append(_call(event, age))
        failure = _failure(event)
        if failure:
            text = failure if kind == "engine_died" else f"{event.get('name') or kind}: {failure}"
            errors.append((age, redact.text(text[:LONGEST])))
        # Only a close as the last event counts.
        closed, closing_error = kind == "close", redact.text(failure[:LONGEST]) if kind == "close" else ""
    # A rank in a group of torch wins over the one that the process was opened with.
    rank, world = scan.rank, scan.world
    if rank is None and opening["world_size"] > 1:
        rank, world = opening["rank"], opening["world_size"]
    journal = Journal(
        path=str(file),
        events=last["seq"] + 1,
        last_age_s=_age(now_ns, last["t_ns"]),
        last_span=span,
        calls=tuple(calls[-CALLS:]),
        errors=tuple(errors[-ERRORS:]),
        groups=tuple(scan.groups.values()),
        closed=closed,
        engine_stats=stats,
        closing_error=closing_error,
        full=os.path.exists(f"{file}{FULL_SUFFIX}"),
    )
    environ = opening.get("env")
    environ = {str(name): str(value) for name, value in environ.items()} if isinstance(environ, dict) else {}
    ppid = opening.get("ppid")
    return Recording(
        host=host,
        pid=pid,
        roles=(role,),
        journal=journal,
        rank=rank,
        world_size=world,
        opened_ns=opening["t_ns"],
        start_ticks=opening["start_ticks"],
        environ=redact.variables(environ),
        ppid=ppid if isinstance(ppid, int) else 0,
    )


class _Scan:
    """The `group` events of one journal up to the position `at`. Journals are append-only, so a later look continues
    there."""

    def __init__(self) -> None:
        self.at, self.groups = 0, dict[str, Group]()
        self.rank: int | None = None  # global rank and world size, by the first group that has ranks 0 to n - 1
        self.world: int | None = None
        self.lock = threading.Lock()
        self._within = False  # `at` lies inside a line that is too long to be a group

    def go_on(self, stream: BinaryIO) -> None:
        """Scan in blocks what was added. An unfinished line is read again next time."""
        stream.seek(self.at)
        remaining_bytes, partial_line = SCAN_BYTES, b""
        while remaining_bytes > 0 and (block := stream.read(BLOCK)):
            remaining_bytes -= len(block)
            complete_lines, newline, tail = (partial_line + block).rpartition(b"\n")
            if newline:
                if self._within:
                    complete_lines, self._within = complete_lines.partition(b"\n")[2], False
                self._take(complete_lines + newline)
                partial_line = tail
            elif len(tail) > BLOCK or self._within:
                partial_line, self._within = b"", True
            else:
                partial_line = tail
            self.at = stream.tell() - len(partial_line)

    def _take(self, text: bytes) -> None:
        at = text.find(b'"group"')
        while at >= 0:
            begin, end = text.rfind(b"\n", 0, at) + 1, text.index(b"\n", at) + 1
            event = _decoded(text[begin:end])
            if event is not None:
                self.add(event)
            at = text.find(b'"group"', end)

    def add(self, event: dict[str, Any]) -> None:
        """Store a group. A group made beside torch's register (a weight sync) numbers its members itself."""
        members, place = event.get("members"), event.get("rank")
        if event["kind"] != "group" or len(self.groups) >= MAX_GROUPS or not isinstance(members, list):
            return
        if not all(isinstance(member, int) for member in members):
            return
        name = str(event.get("name", ""))
        size = int(event["world_size"]) if isinstance(event.get("world_size"), int) else len(members)
        if not 0 <= size <= RANKS:
            return
        torch_name = str(event.get("torch_name", name))  # its name in the flight recorder
        desc, own_rank = "" if torch_name == name else name, None if members or not isinstance(place, int) else place
        self.groups[torch_name] = Group(torch_name, tuple(members), str(event.get("backend", "")), desc, size, own_rank)
        is_world_group = torch_name != "" and members == list(range(len(members)))
        if self.world is None and is_world_group and isinstance(place, int) and 0 <= place < len(members):
            self.rank, self.world = members[place], len(members)


_scans: OrderedDict[tuple[int, int, int], _Scan] = OrderedDict()  # (device, inode, opened) -> its scan, latest last


def _scanned(stream: BinaryIO, opened_ns: int) -> _Scan:
    """The groups of a journal.

    A look that was given up on may still be scanning it. Wait for that one a moment, then use the groups found so far.
    """
    file_stat = os.fstat(stream.fileno())
    identity = file_stat.st_dev, file_stat.st_ino, opened_ns
    scan = _scans.pop(identity, None)
    if scan is None or scan.at > file_stat.st_size:
        scan = _Scan()
    _scans[identity] = scan
    while len(_scans) > MAX_SCANS:
        _scans.popitem(last=False)
    if scan.lock.acquire(timeout=BUSY_S):
        try:
            scan.go_on(stream)
        finally:
            scan.lock.release()
    return scan


def _tail(stream: BinaryIO) -> Iterator[dict[str, Any]]:
    """Yield the events of the last stretch: at least the last whole one, however large. An unfinished last line is
    dropped."""
    end, size = stream.seek(0, 2), TAIL_BYTES
    while True:
        begin = stream.seek(max(0, end - size))
        lines = stream.read(end - begin).split(b"\n")[(1 if begin else 0) : -1]
        if lines or not begin:
            break
        if size >= MAX_EVENT:
            yield from _head_of_last(stream, end)
            return
        size *= 4
    for line in check_tail([line + b"\n" for line in lines]):
        event = _decoded(line)
        if event is not None:
            yield event


def _head_of_last(stream: BinaryIO, end: int) -> Iterator[dict[str, Any]]:
    """Yield number, time and kind of the last whole event, which is too large to decode."""
    last = True  # search line ends backwards: the end of the last whole line, then that of the line before it
    at = end
    while at > max(0, end - SCAN_BYTES):
        begin = max(0, at - BLOCK)
        stream.seek(begin)
        block = stream.read(at - begin)
        cut = len(block)
        while (cut := block.rfind(b"\n", 0, cut)) >= 0:
            if not last:
                stream.seek(begin + cut + 1)
                if head := _HEAD.match(stream.read(200)):
                    yield {"seq": int(head[1]), "t_ns": int(head[2]), "kind": head[3].decode()}
                return
            last = False
        at = begin


def _decoded(line: bytes) -> dict[str, Any] | None:
    """The event of a line; None for a damaged line, so that the rest of the journal is still read."""
    try:
        return decode_line(line)
    except FormatError:
        return None


def _call(event: dict[str, Any], age_s: float) -> Call:
    step = event.get("step")
    name = str(event.get("name") or event["kind"])
    ok = event.get("ok", True) is not False
    message = redact.text(str(event.get("message", ""))[:LONGEST])
    return Call(name, ok, message, age_s, step if isinstance(step, int) else -1)


def _failure(event: dict[str, Any]) -> str:
    """What an event says went wrong, in one line; empty if nothing did."""
    kind = event["kind"]
    if kind == "engine_died":
        return str(event.get("message", "an engine process died"))
    if event.get("ok", True) is not False or kind not in ("span", "call", "sync", "close"):
        return ""
    return str(event.get("error") or event.get("message") or event.get("reason") or "failed")


def _joined(later: Recording, earlier: Recording) -> Recording:
    """Join two journals of one process."""
    new, old = later.journal, earlier.journal
    groups = {group.name: group for group in (*old.groups, *new.groups)}
    if old.closed:
        journal = dataclasses.replace(new, groups=tuple(groups.values()))
    else:
        fresh = new if new.last_age_s <= old.last_age_s else old
        journal = Journal(
            path=new.path,
            events=new.events + old.events,
            last_age_s=fresh.last_age_s,
            last_span=fresh.last_span or new.last_span or old.last_span,
            calls=tuple(sorted((*old.calls, *new.calls), key=lambda call: -call.age_s)[-CALLS:]),
            errors=tuple(sorted((*old.errors, *new.errors), key=lambda error: -error[0])[-ERRORS:]),
            groups=tuple(groups.values()),
            closed=new.closed,
            engine_stats=new.engine_stats or old.engine_stats,
            closing_error=new.closing_error,
            full=new.full or old.full,
        )
    whose = later if later.rank is not None else earlier
    return dataclasses.replace(
        later, journal=journal, roles=(*later.roles, *earlier.roles), rank=whose.rank, world_size=whose.world_size
    )


def _age(now_ns: int, then_ns: int) -> float:
    return max(0.0, (now_ns - then_ns) / 1e9)
