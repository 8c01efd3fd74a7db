"""How a watched command ended; and how one that failed left its processes: their exit codes, and the memory that each
held at most.

The watch writes both into its directory, because nothing of an ended process is left to look at.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Collection, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, BinaryIO

from harness.triage.evidence import EndedBy, Evidence, Peak, Process, Sample
from probes import limits
from probes.files import write_whole
from probes.heartbeat import WATCHDOG

NAME = "ended.json"
MAX_ENDED_BYTES = 16 << 20  # 4,096 processes take 1 MiB
MAX_CODE = 255  # an exit code is a byte
MAX_SIGNAL = 64  # of Linux
MAX_BEAT_BYTES = 1 << 12  # of the watch's own beat, which is written as a block of 512 bytes


def write(directory: Path, peaks: Collection[Peak]) -> None:
    """Write the file into the directory of a watch, if there is anything to say and the disk is not full."""
    if peaks:
        with contextlib.suppress(OSError):
            write_whole(directory / NAME, json.dumps([asdict(peak) for peak in peaks]).encode())


def read(directory: Path) -> tuple[Peak, ...]:
    """The peaks in the directory of a watch; empty without them."""
    try:
        with open(directory / NAME, "rb") as stream:
            rows = json.loads(stream.read(MAX_ENDED_BYTES))
        return tuple(
            Peak(
                host=str(row["host"]), pid=int(row["pid"]), name=str(row["name"]), peak_bytes=int(row["peak_bytes"]),
                killed=bool(row["killed"]), exit_code=None if row["exit_code"] is None else int(row["exit_code"]),
                rank=limits.rank(str(row.get("rank"))), first_by_launcher=row.get("first_by_launcher") is True,
                gone_s=float(row.get("gone_s") or 0.0),
            )
            for row in rows
        )  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError, RecursionError):  # none was written, or it is damaged
        return ()


def opened(directory: Path | None, stack: contextlib.ExitStack) -> BinaryIO | None:
    """The beat of the watch of this directory, open for the stack's time: a watch may remove its directory when it
    ends. None without a watch."""
    if directory is None or not os.path.isfile(directory / WATCHDOG):
        return None
    try:
        return stack.enter_context(open(directory / WATCHDOG, "rb"))
    except OSError:
        return None


def with_end_of_command(evidence: Evidence, directory: Path, beat_file: BinaryIO | None = None) -> Evidence:
    """The evidence with how the command of the watch of this directory ended, as far as the last beat of the watch
    says. `beat_file`: that beat, if it is open already."""
    try:
        with contextlib.nullcontext(beat_file) if beat_file is not None else open(directory / WATCHDOG, "rb") as stream:
            beat = json.loads(stream.read(MAX_BEAT_BYTES))
        code = beat["exit_code"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):  # no watch, one that goes on, a damaged beat
        return evidence
    if not isinstance(code, int) or not 0 <= code <= MAX_CODE:
        return evidence
    return replace(evidence, command_exit_code=code, ended_by=_ended_by(beat))


def _ended_by(beat: Mapping[str, Any]) -> EndedBy | None:
    signum, at_ns = beat.get("signal"), beat.get("signal_t_ns")
    if not isinstance(signum, int) or not isinstance(at_ns, int) or not 0 < signum <= MAX_SIGNAL:
        return None
    is_here = beat.get("host") == socket.gethostname()  # the clock is this host's
    age_s = (time.monotonic_ns() - at_ns) / 1e9
    return EndedBy(signum, age_s if is_here and age_s >= 0 else None)


def has_watch(directory: Path | None) -> bool:
    """Whether it is the directory of a watch, which writes its beat there before the command starts."""
    return directory is not None and (directory / WATCHDOG).exists()


def added(evidence: Evidence, directory: Path, beat_file: BinaryIO | None = None) -> Evidence:
    """The evidence with what the watch wrote of the end of its processes. `beat_file`: its beat, if it is open already.

    A process that the kernel killed, or of whose end its launcher spoke, and that left nothing else is added. One that
    lives, or whose exit code is known, stays as it is.
    """
    peaks = read(directory)
    by_key = {f"{peak.host}:{peak.pid}": peak for peak in peaks}
    keys = {process.key for process in evidence.processes}
    processes = [_ended(process, by_key.get(process.key)) for process in evidence.processes]
    processes += [
        Process(host=peak.host, pid=peak.pid, ppid=-1, command=peak.name, exit_code=peak.exit_code, rank=peak.rank,
                first_by_launcher=peak.first_by_launcher, samples=(Sample(0.0, "gone"),))
        for key, peak in by_key.items() if (peak.killed or peak.rank is not None) and key not in keys
    ]  # fmt: skip
    return with_end_of_command(replace(evidence, processes=tuple(processes), peaks=peaks), directory, beat_file)


def _ended(process: Process, peak: Peak | None) -> Process:
    is_gone = process.samples and process.samples[-1].state == "gone"
    if peak is None or peak.exit_code is None or process.exit_code is not None or not is_gone:
        return process
    rank = peak.rank if process.rank is None else process.rank
    return replace(process, exit_code=peak.exit_code, rank=rank, first_by_launcher=peak.first_by_launcher)
