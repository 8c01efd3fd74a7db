"""Flight recorder dumps: over the unix socket of a process's own worker server, or from the files that NCCL wrote.

The worker server answers with the interpreter lock held (8 ms); SIGSTOP silences it, which is a note. Dumps are kept as
they came, with their texts scrubbed: nothing is parsed here, and a pickle least of all.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path

from harness.triage.collect import proc, redact
from harness.triage.collect.stacks import Stacks, parse_faulthandler
from harness.triage.directory import MAX_DUMP_BYTES, RECORDER, file_name
from probes.files import make_folder, write_whole

TIMEOUT_S = 2.0
HANDLERS = ("dump_nccl_trace_json", "fr_trace_json")  # NCCL's recorder where the build has it, then c10d's (gloo)
FILE_VARIABLES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")


class Unanswered(Exception):
    """The worker server did not answer; the message says how and what it means."""


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def ask(path: str, handler: str, *, timeout_s: float = TIMEOUT_S) -> bytes:
    """The body of one handler of a worker server. Raises Unanswered."""
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
    """Save what the recorder of a process says under `out`; its path relative to `out`, and a note where there is none.

    Of several recorders in one process the one with more entries is kept (an NCCL job has gloo groups beside).
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


def from_file(environ: Mapping[str, str], rank: int | None, host: str, pid: int, out: Path) -> str:
    """Copy the dump that NCCL wrote of this rank, if it wrote one since the process began; its path relative to `out`.

    The name is the variable's value and the rank. An older file is another run's.
    """
    if rank is None:
        return ""
    return _copied(environ, rank, proc.started_wall_s(pid) or 0.0, file_name(host, pid, ""), out)


def of_others(environ: Mapping[str, str], ranks: Iterable[int], since_s: float, out: Path) -> dict[str, str]:
    """Dumps of ranks that were not seen (ended, or on another host with these files in common): name -> path.

    `environ`: of a process of the job. `since_s`: Unix time before which a file is another run's.
    """
    found = {f"rank {rank}": _copied(environ, rank, since_s, f"rank-{rank}", out) for rank in ranks}
    return {name: path for name, path in found.items() if path}


def _copied(environ: Mapping[str, str], rank: int, since_s: float, name: str, out: Path) -> str:
    for variable in FILE_VARIABLES:
        file = Path(f"{environ.get(variable, '')}{rank}")
        if not environ.get(variable) or not file.is_absolute():
            continue
        try:
            found = file.stat()
            if not stat.S_ISREG(found.st_mode) or found.st_size > MAX_DUMP_BYTES or found.st_mtime < since_s - 1:
                continue
            with open(file, "rb") as stream:
                data = stream.read(MAX_DUMP_BYTES)
            relative = f"{RECORDER}/{name}{'.json' if data[:1] == b'{' else '.pickle'}"
            make_folder(out / RECORDER)
            write_whole(out / relative, redact.dump(data))
        except OSError:  # none was written, or it is being replaced right now: the other variable may do
            continue
        return relative
    return ""


def traceback(path: str, *, timeout_s: float = TIMEOUT_S) -> Stacks:
    """Python stacks from inside, where ptrace is not permitted: faulthandler through the worker server.

    It needs the interpreter lock, so a process that holds it in C stays silent.
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
