"""The end of what each process recorded of itself: D/events/*.jsonl, read from behind.

A journal may have a million events, so only its first line, its `group` events (found by their bytes: 2 GB/s) and its
last stretch are decoded. Damage costs the damaged line and nothing else.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from harness.triage.collect import redact
from harness.triage.evidence import Call, Group, Journal
from probes.format import EVENTS, FormatError, checked_open, decode_line

TAIL_BYTES = 1 << 20  # about 5,000 events
SCAN_BYTES = 1 << 30
BLOCK = 8 << 20
CALLS, ERRORS, MAX_GROUPS = 20, 20, 4_096


@dataclass(frozen=True)
class Recording:
    """One journal and whose it is. `rank`: global, where the process belongs to a group of torch.distributed."""

    host: str
    pid: int
    roles: tuple[str, ...]  # of its journals, the latest first
    journal: Journal
    rank: int | None = None
    world_size: int | None = None
    opened_ns: int = 0  # Unix time


def files(directory: Path) -> list[Path]:
    """The journals of a run or watch directory."""
    return sorted((directory / EVENTS).glob("*.jsonl"))


def owners(paths: Iterable[Path], here: str) -> tuple[dict[tuple[str, int], list[Path]], list[str]]:
    """(host, pid) -> the journals of that process, by their first lines alone; notes about files that have none."""
    found: dict[tuple[str, int], list[Path]] = {}
    notes = []
    for file in paths:
        try:
            with open(file, "rb") as stream:
                opening = _opening(stream)
            found.setdefault((str(opening.get("host") or here), opening["pid"]), []).append(file)
        except OSError as error:
            notes.append(f"{EVENTS}/{file.name} cannot be read: {error.strerror}")
        except (FormatError, KeyError, TypeError, ValueError):
            notes.append(f"{EVENTS}/{file.name} is no journal: its first line is damaged or missing")
    return found, notes


def read(
    paths: Iterable[Path], now_ns: int, wall_ns: int, host: str
) -> tuple[dict[tuple[str, int], Recording], list[str]]:
    """What every process recorded by (host, pid), and notes about damage.

    A process may have several journals: those that are open are read as one, and of those that it closed before only
    the groups count. `now_ns`, `wall_ns`: CLOCK_MONOTONIC and Unix time of this host, whose name is `host`. Ages on
    another host come from the wall clock.
    """
    found: dict[tuple[str, int], Recording] = {}
    notes = []
    for file in paths:
        try:
            one = _recording(file, now_ns, wall_ns, host)
        except OSError as error:
            notes.append(f"{EVENTS}/{file.name} cannot be read: {error.strerror}")
            continue
        except (FormatError, KeyError, TypeError, ValueError):
            notes.append(f"{EVENTS}/{file.name} is no journal: its first line is damaged or missing")
            continue
        key = one.host, one.pid
        before = found.get(key)
        found[key] = one if before is None else _joined(*sorted((before, one), key=lambda each: -each.opened_ns))
    return found, notes


def _opening(stream: BinaryIO) -> dict[str, Any]:
    """The first line of a journal, with `wall_ns` and `world_size` filled in; FormatError, ValueError, TypeError."""
    opening = checked_open(decode_line(stream.readline(BLOCK)))
    return {
        **opening, "wall_ns": int(opening.get("wall_ns") or 0), "world_size": int(opening.get("world_size") or 1)
    }  # fmt: skip


def _recording(file: Path, now_ns: int, wall_ns: int, here: str) -> Recording:
    with open(file, "rb") as stream:
        opening = _opening(stream)
        host, pid, role = str(opening.get("host") or here), opening["pid"], opening["role"]
        opened_ns = opening["wall_ns"]
        if host != here and opened_ns:
            now_ns = wall_ns - opened_ns + opening["t_ns"]  # that host's monotonic clock, by the wall clocks
        groups, rank, world = _groups(stream)
        tail = list(_tail(stream))
    last = tail[-1] if tail else opening
    calls, errors, span, closed, stats = [], [], "", False, {}
    for event in tail:
        age, kind = _age(now_ns, event["t_ns"]), event["kind"]
        if kind == "span":
            span = str(event.get("name", ""))
        if kind == "engine_stats":
            stats = redact.fields({key: value for key, value in event.items() if key not in ("seq", "t_ns", "kind")})
        if kind in ("call", "sync"):
            calls.append(_call(event, age))
        if failure := _failure(event):
            errors.append((age, redact.text(failure)))
        closed = kind == "close"
    if rank is None and opening["world_size"] > 1:
        rank, world = opening["rank"], opening["world_size"]
    journal = Journal(
        str(file), last["seq"] + 1, _age(now_ns, last["t_ns"]), span, tuple(calls[-CALLS:]), tuple(errors[-ERRORS:]),
        tuple(groups), closed, stats,
    )  # fmt: skip
    return Recording(host, pid, (role,), journal, rank, world, opened_ns)


def _groups(stream: BinaryIO) -> tuple[list[Group], int | None, int | None]:
    """Groups of the whole journal, and the global rank and world size by the first that has the ranks 0 to n - 1.

    A group that was made beside torch's register (a weight sync) numbers its members in a way of its own.
    """
    groups: dict[str, Group] = {}
    rank = world = None
    for event in _lines_with(stream, b'"group"'):
        members, place = event.get("members"), event.get("rank")
        if event["kind"] != "group" or len(groups) >= MAX_GROUPS or not isinstance(members, list):
            continue
        if not all(isinstance(member, int) for member in members):
            continue
        name = str(event.get("name", ""))
        size = int(event["world_size"]) if isinstance(event.get("world_size"), int) else len(members)
        known = str(event.get("torch_name", name))  # what the flight recorder calls it
        groups[known] = Group(known, tuple(members), str(event.get("backend", "")), "" if known == name else name, size)
        whole = known != "" and members == list(range(len(members)))
        if world is None and whole and isinstance(place, int) and 0 <= place < len(members):
            rank, world = members[place], len(members)
    return list(groups.values()), rank, world


def _lines_with(stream: BinaryIO, needle: bytes) -> Iterator[dict[str, Any]]:
    """Decoded lines that contain these bytes; the file is read in blocks that end at line ends."""
    stream.seek(0)
    left, rest = SCAN_BYTES, b""
    while left > 0 and (block := stream.read(BLOCK)):
        left -= len(block)
        whole, newline, tail = block.rpartition(b"\n")
        if not newline:
            rest += block
            continue
        text, rest = rest + whole + newline, tail
        at = text.find(needle)
        while at >= 0:
            begin, end = text.rfind(b"\n", 0, at) + 1, text.index(b"\n", at) + 1
            event = _decoded(text[begin:end])
            if event is not None:
                yield event
            at = text.find(needle, end)


def _tail(stream: BinaryIO) -> Iterator[dict[str, Any]]:
    """Events of the last stretch, an unfinished last line dropped."""
    end = stream.seek(0, 2)
    stream.seek(max(0, end - TAIL_BYTES))
    block = stream.read(TAIL_BYTES)
    lines = block.split(b"\n")[(1 if end > TAIL_BYTES else 0) : -1]
    for line in lines:
        event = _decoded(line + b"\n")
        if event is not None:
            yield event


def _decoded(line: bytes) -> dict[str, Any] | None:
    """None for a damaged line: the rest of the journal still tells what it can."""
    try:
        return decode_line(line)
    except FormatError:
        return None


def _call(event: dict[str, Any], age_s: float) -> Call:
    step = event.get("step")
    name = str(event.get("name") or event["kind"])
    ok = event.get("ok", True) is not False
    return Call(name, ok, redact.text(str(event.get("message", ""))), age_s, step if isinstance(step, int) else -1)


def _failure(event: dict[str, Any]) -> str:
    """What an event says that went wrong, in a line; empty when nothing did."""
    kind = event["kind"]
    if kind == "engine_died":
        return str(event.get("message", "an engine process died"))
    if event.get("ok", True) is not False or kind not in ("span", "call", "sync", "close"):
        return ""
    said = event.get("error") or event.get("message") or event.get("reason") or "failed"
    return f"{event.get('name') or kind}: {said}"


def _joined(later: Recording, earlier: Recording) -> Recording:
    """Two journals of one process as one."""
    new, old = later.journal, earlier.journal
    groups = {group.name: group for group in (*old.groups, *new.groups)}
    if old.closed:
        journal = dataclasses.replace(new, groups=tuple(groups.values()))
    else:
        fresh = new if new.last_age_s <= old.last_age_s else old
        journal = Journal(
            new.path, new.events + old.events, fresh.last_age_s, fresh.last_span or new.last_span or old.last_span,
            tuple(sorted((*old.calls, *new.calls), key=lambda call: -call.age_s)[-CALLS:]),
            tuple(sorted((*old.errors, *new.errors), key=lambda error: -error[0])[-ERRORS:]),
            tuple(groups.values()), new.closed, new.engine_stats or old.engine_stats,
        )  # fmt: skip
    whose = later if later.rank is not None else earlier
    return dataclasses.replace(
        later, journal=journal, roles=(*later.roles, *earlier.roles), rank=whose.rank, world_size=whose.world_size
    )


def _age(now_ns: int, then_ns: int) -> float:
    return max(0.0, (now_ns - then_ns) / 1e9)
