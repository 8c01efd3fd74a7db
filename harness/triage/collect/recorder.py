"""Flight recorder dumps: over the Unix socket of a process's own worker server, or from the files that NCCL wrote.

The worker server answers while the interpreter lock is held (8 ms). A process under SIGSTOP does not answer, which is
noted. Dumps are kept as they came, with their texts scrubbed. Nothing is parsed here, least of all a pickle.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import stat
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.triage.collect import proc, redact
from harness.triage.collect.stacks import Stacks, parse_faulthandler
from harness.triage.directory import RECORDER, file_name
from harness.triage.flight.flight import MAX_DUMP_BYTES
from probes.files import make_folder, write_whole

TIMEOUT_S = 2.0  # chosen: within the eight seconds of a look; a stopped process never answers
HANDLERS = ("dump_nccl_trace_json", "fr_trace_json")  # NCCL's recorder if the build has it, then that of c10d (gloo)
FILE_VARIABLES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")


class Unanswered(Exception):
    """The worker server did not answer. The message says how, and what that means."""


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def ask(path: str, handler: str, *, timeout_s: float = TIMEOUT_S) -> bytes:
    """The answer of one handler of a worker server. Raises Unanswered."""
    connection = _UnixConnection(path, timeout_s)
    try:
        connection.request("POST" if handler else "GET", f"/handler/{handler}")
        answer = connection.getresponse()
        body = answer.read(MAX_DUMP_BYTES)
    except TimeoutError as error:
        raise Unanswered(f"silent for {timeout_s:.0f} s: the process is stopped, or its worker server is") from error
    except (OSError, http.client.HTTPException) as error:
        why = error.strerror if isinstance(error, OSError) else None
        raise Unanswered((why or type(error).__name__).lower()) from error
    finally:
        connection.close()
    if answer.status != 200:
        raise Unanswered(f"no handler {handler}")
    return body


def from_socket(path: str, host: str, pid: int, out: Path, *, timeout_s: float = TIMEOUT_S) -> tuple[str, str]:
    """Save the dump of a process's recorder under `out`. Returns its path relative to `out`, and a note if there is
    none.

    If a process has several recorders, the one with more entries is kept: an NCCL job also has gloo groups.
    """
    if not _is_socket(path):
        return "", f"no flight recorder: its worker server's socket {path} is not there"
    try:
        offered = json.loads(ask(path, "", timeout_s=timeout_s))
    except Unanswered as error:
        return "", f"no flight recorder: its worker server is {error}"
    except ValueError:
        offered = list(HANDLERS)
    best, reasons = b"", []
    for handler in HANDLERS:
        if handler not in offered:
            continue
        try:
            body = ask(path, handler, timeout_s=timeout_s)
        except Unanswered as error:
            reasons.append(str(error))
            continue
        if not best or body.count(b'"record_id"') > best.count(b'"record_id"'):
            best = body
    if not best:
        return "", f"no flight recorder: its worker server is {reasons[0] if reasons else 'without a recorder'}"
    relative = f"{RECORDER}/{file_name(host, pid)}"
    make_folder(out / RECORDER)
    write_whole(out / relative, redact.dump(best))
    return relative, ""


@dataclass(frozen=True)
class Since:
    """Unix time at which a process began: by the clock as it is set now (`now_s`), and as it was set then
    (`then_s`)."""

    now_s: float
    then_s: float

    def admits(self, written_s: float) -> bool | None:
        """Whether a file was written since the process began; None if that cannot be known.

        Files from before the process have times of the clock as it was set then, so a file later than that is the
        process's own. An earlier file is its own only if the clock was set back before it was written. A file from the
        future was written before the clock was set back, or on another host.
        """
        if written_s < min(self.now_s, self.then_s) - 1:
            return False
        ahead_s = max(0.0, self.then_s - self.now_s)
        return True if self.then_s - 1 <= written_s <= time.time() + ahead_s + 1 else None


def from_file(
    environ: Mapping[str, str], rank: int | None, host: str, pid: int, out: Path, *, clock_set_s: float = 0.0
) -> tuple[str, int, str]:
    """Copy the dump that NCCL wrote for this rank, if it was written since the process began.

    Returns its path relative to `out`, the time of writing in ns, and a note if its run cannot be told. The file name
    is the variable's value followed by the rank; an older file belongs to another run. `clock_set_s`: by how much the
    wall clock was set while the job ran.
    """
    if rank is None:
        return "", 0, ""
    began = proc.started_wall_s(pid) or 0.0
    return _copied(environ, rank, Since(began, began - clock_set_s), file_name(host, pid, ""), out)


def of_others(
    environ: Mapping[str, str], ranks: Iterable[int], since: Since, out: Path
) -> tuple[dict[str, str], list[str]]:
    """Dumps of ranks that were not seen, because they ended or run on a host that shares these files: (name -> path,
    notes).

    `environ`: variables of a process of the job. `since`: files from before it belong to another run.
    """
    copies = {f"rank {rank}": _copied(environ, rank, since, f"rank-{rank}", out) for rank in ranks}
    paths = {name: path for name, (path, _, _) in copies.items() if path}
    return paths, [note for _, _, note in copies.values() if note]


def _copied(environ: Mapping[str, str], rank: int, since: Since, name: str, out: Path) -> tuple[str, int, str]:
    note = ""
    for variable in FILE_VARIABLES:
        file = Path(f"{environ.get(variable, '')}{rank}")
        if not environ.get(variable) or not file.is_absolute():
            continue
        try:
            file_stat = file.stat()
            if not stat.S_ISREG(file_stat.st_mode) or file_stat.st_size > MAX_DUMP_BYTES:
                continue
            ours = since.admits(file_stat.st_mtime)
            if not ours:
                if ours is None:
                    note = f"clock unknown: whether this run wrote {file} cannot be told, so it is not used"
                continue
            with open(file, "rb") as stream:
                data = stream.read(MAX_DUMP_BYTES)
            relative = f"{RECORDER}/{name}{'.json' if data[:1] == b'{' else '.pickle'}"
            make_folder(out / RECORDER)
            write_whole(out / relative, redact.dump(data))
        except OSError:  # no file, or it is being replaced right now: try the other variable
            continue
        return relative, file_stat.st_mtime_ns, ""
    return "", 0, note


def traceback(path: str, *, timeout_s: float = TIMEOUT_S) -> Stacks:
    """Python stacks from inside the process, for when ptrace is not permitted: faulthandler through the worker server.

    It needs the interpreter lock, so a process that holds the lock in C does not answer.
    """
    try:
        threads = parse_faulthandler(ask(path, "dump_traceback", timeout_s=timeout_s).decode(errors="replace"))
    except Unanswered as error:
        return Stacks(note=f"no stacks from inside either: its worker server is {error}, or its interpreter lock held")
    return Stacks(threads, "" if threads else "no stacks from inside either: faulthandler listed no thread")


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode)
    except (OSError, ValueError):
        return False
