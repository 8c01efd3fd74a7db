"""Heartbeats: the probe in a process rewrites D/beats/<pid>.json in place every second."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.triage.collect import redact
from harness.triage.evidence import Beat, Frame, HandledError, LostThread, OpenSpan
from probes.limits import RANKS, bounded, check_whole

FOLDER = "beats"
MAX_BYTES = 1 << 16  # chosen: a beat has a few KiB, its stack included
MAX_LOST, LOST_TEXT = 16, 300  # lost threads of a beat, and characters of what it says of one
_DAMAGED = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)  # what `parse` raises


@dataclass(frozen=True)
class Pulse:
    """One beat file: the process that it belongs to, and what it says."""

    host: str
    pid: int
    beat: Beat
    role: str = ""
    rank: int | None = None
    world_size: int | None = None
    socket: str = ""  # Unix socket of the process's worker server
    start_ticks: int = 0  # field 22 of /proc/PID/stat, which differs for a later process of this pid; 0 unknown
    journals: tuple[str, ...] = ()  # files that the process writes events to, in any folder
    error: str = ""  # the error that it ended with
    file: str = ""  # path of the beat file
    read_ns: int = 0  # when it was read; monotonic time of this host
    at_ns: int = 0  # when the beat was written; monotonic time of its own host
    loops: int = 0  # event loops that run in the process


def read(directory: Path, now_ns: int) -> tuple[dict[tuple[str, int], Pulse], tuple[str, ...]]:
    """Read every beat of a watch directory: {(host, pid): Pulse}, and notes about files that cannot be read.

    `now_ns`: CLOCK_MONOTONIC of this host. Another host has another clock, so the ages in its beats are measured at the
    moment of the beat. A beat that was being rewritten is read once more.
    """
    pulses, notes, here = {}, [], socket.gethostname()
    for file in sorted((directory / FOLDER).glob("[0-9]*.json")):  # skips the watchdog's own beat
        for last in (False, True):
            try:
                pulse = parse(_block(file), now_ns, here)
            except OSError as error:
                notes.append(f"{FOLDER}/{file.name} cannot be read: {error.strerror}")
            except _DAMAGED:
                if not last:
                    continue
                notes.append(f"{FOLDER}/{file.name} is no heartbeat: it is damaged or was never written whole")
            else:
                pulses[pulse.host, pulse.pid] = dataclasses.replace(pulse, file=str(file), read_ns=now_ns)
            break
    return pulses, tuple(notes)


def kept_open(pulses: Mapping[tuple[str, int], Pulse], stack: contextlib.ExitStack) -> dict[tuple[str, int], Pulse]:
    """The pulses of this host with their files open for the stack's time: they can be read again, also after the watch
    has ended and removed its directory, which holds how each process ended."""
    here = socket.gethostname()
    kept = dict(pulses)
    for key, pulse in pulses.items():
        with contextlib.suppress(OSError):  # removed already, or too many files are open
            if pulse.host == here and os.path.isfile(pulse.file):
                stream = stack.enter_context(open(pulse.file, "rb"))  # noqa: SIM115  # the stack closes it
                kept[key] = dataclasses.replace(pulse, file=f"/proc/self/fd/{stream.fileno()}")
    return kept


def again(pulse: Pulse, now_ns: int) -> Pulse:
    """Read the next beat of the same process; return `pulse` if there is none, it cannot be read, or another process
    wrote it.

    Without a new beat the age stays as it was at the first look. Otherwise a host too busy to beat while it is looked
    at would seem to hold its interpreter lock (a control was blamed this way, at 5 s with four busy jobs on two cores).
    The beat of another host, whose clock differs, is as old as the time that we have waited for the next one.
    """
    here = socket.gethostname()
    try:
        later = parse(_block(Path(pulse.file)), now_ns, here)
    except (OSError, *_DAMAGED):
        later = pulse
    is_same_process = (later.host, later.pid, later.start_ticks) == (pulse.host, pulse.pid, pulse.start_ticks)
    if is_same_process and later.beat.count > pulse.beat.count:
        return dataclasses.replace(later, file=pulse.file, read_ns=now_ns)
    if pulse.host == here:
        return pulse
    waited_s = _age(now_ns, pulse.read_ns)
    beat = pulse.beat
    return dataclasses.replace(
        pulse, beat=dataclasses.replace(beat, age_s=waited_s, progress_age_s=beat.progress_age_s + waited_s)
    )


def _block(file: Path) -> bytes:
    if not os.path.isfile(file):  # a pipe never ends
        raise ValueError(f"{file} is not a regular file")
    with open(file, "rb") as stream:
        return stream.read(MAX_BYTES)


def parse(block: bytes, now_ns: int, here: str = "") -> Pulse:
    """Parse one beat. `here`: the host whose clock `now_ns` is. Raises one of _DAMAGED for anything that is no beat."""
    fields: dict[str, Any] = json.loads(block.rstrip(b" \n\0").decode())
    check_whole(fields)
    # Another host's clock cannot be compared with ours: measure its ages at the moment of its beat.
    if here and fields["host"] != here:
        now_ns = int(fields["t_ns"])
    world, rank = _number(fields.get("world_size")), _number(fields.get("rank"))
    # A damaged file must not make the reader count to an absurd number of ranks.
    bounded(world or 0, RANKS, "world_size")
    bounded(rank or 0, RANKS, "rank")
    role, socket = str(fields.get("role") or ""), str(fields.get("socket") or "")
    return Pulse(
        host=str(fields["host"]),
        pid=int(fields["pid"]),
        beat=_beat(fields, now_ns),
        role=role,
        rank=rank,
        world_size=world,
        socket=socket,
        start_ticks=int(fields.get("start_ticks") or 0),
        journals=tuple(str(path) for path in fields.get("journals") or ()),
        error=redact.text(str(fields.get("error") or "")),
        at_ns=int(fields["t_ns"]),
        loops=_number(fields.get("loops")) or 0,
    )


def _beat(fields: dict[str, Any], now_ns: int) -> Beat:
    """What one beat says of the process, its ages in seconds at `now_ns`."""
    return Beat(
        count=int(fields["count"]),
        age_s=_age(now_ns, fields["t_ns"]),
        progress_age_s=_age(now_ns, fields["progress_ns"]),
        period_s=float(fields.get("period_s") or 1.0),
        open_spans=tuple(_open_span(now_ns, span) for span in fields.get("open") or ()),
        sequences={str(name): int(count) for name, count in (fields.get("sequences") or {}).items()},
        breakpoint=bool(fields.get("breakpoint")),
        wait=str(fields.get("wait") or ""),
        stack=tuple(str(frame) for frame in fields.get("stack") or ()),
        ended=bool(fields.get("ended")),
        tid=_number(fields.get("tid")) or 0,
        states={str(name): _state(now_ns, state) for name, state in (fields.get("states") or {}).items()},
        lost_threads=tuple(_lost(now_ns, thread) for thread in (fields.get("lost_threads") or ())[:MAX_LOST]),
        raised_at=_frame(*fields["raised_at"]) if fields.get("raised_at") else None,
        exit_status=_number(fields.get("exit_status")),
        handles=_handled(**fields["handles"]) if fields.get("handles") else None,
        tells_handled="handles" in fields and not fields.get("cut"),
    )


def _open_span(now_ns: int, span: dict[str, Any]) -> OpenSpan:
    return OpenSpan(str(span["name"]), _age(now_ns, span["start_ns"]), redact.fields(span.get("fields") or {}))


def _state(now_ns: int, fields: dict[str, Any]) -> dict[str, Any]:
    """The state that a process reports of itself, with the time of its look turned into an age."""
    kept = redact.fields({key: value for key, value in fields.items() if key != "t_ns"})
    return kept | ({"age_s": _age(now_ns, fields["t_ns"])} if "t_ns" in fields else {})


def _lost(now_ns: int, thread: dict[str, Any]) -> LostThread:
    name, error = (redact.text(str(thread.get(key) or ""), LOST_TEXT) for key in ("name", "error"))
    return LostThread(name, error, _age(now_ns, thread["t_ns"]))


def _handled(error: Any, raised: Any, caught: Any) -> HandledError:
    return HandledError(redact.text(str(error), LOST_TEXT), _frame(*raised), _frame(*caught))


def _frame(file: Any, line: Any, function: Any) -> Frame:
    return Frame(redact.text(str(function), LOST_TEXT), redact.text(str(file)), int(line))


def _age(now_ns: int, then_ns: Any) -> float:
    return max(0.0, (now_ns - int(then_ns)) / 1e9)


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
