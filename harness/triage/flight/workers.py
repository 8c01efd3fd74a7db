"""Processes that read dumps in parallel. Each is killed if one file keeps it busy too long."""

from __future__ import annotations

import os
import queue
import select
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from harness.triage.flight import worker
from harness.triage.flight.flight import Flight, FlightError
from probes.limits import open_file

DEADLINE_S = 120.0  # for one file; a dump of 2,000 operations takes 0.02 s
# JSON up to this size in all is read in this process: starting a worker takes longer (0.15 s), and so little can do no
# harm.
IN_PROCESS_BYTES = 256 << 10
PER_WORKER = 4  # files per worker: fewer are not worth another start
_ROOT = str(Path(__file__).resolve().parents[3])
_START = f"import sys, runpy; sys.path.insert(0, {_ROOT!r}); runpy.run_module({worker.__name__!r}, run_name='__main__')"


class Worker:
    """One reading process. It is started again after it had to be killed."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def read(self, path: Path, deadline_s: float) -> Flight | FlightError:
        process = self._process = self._process or _start()
        assert process.stdin and process.stdout
        ends = time.monotonic() + deadline_s
        try:
            process.stdin.write(os.fsencode(path).hex().encode() + b"\n")
            process.stdin.flush()
            head = _exactly(process.stdout.fileno(), 8, ends)
            return worker.outcome(_exactly(process.stdout.fileno(), struct.unpack("<Q", head)[0], ends))
        except TimeoutError:
            self.close()
            return FlightError(f"{path.name} was not read within {deadline_s:.0f} s: refused")
        except (EOFError, BrokenPipeError):
            self.close()
            return FlightError(f"{path.name} ended the process that read it: refused")

    def close(self) -> None:
        if self._process is None:
            return
        self._process.kill()
        self._process.communicate()
        self._process = None


def _start() -> subprocess.Popen[bytes]:
    # -I: neither the current folder nor PYTHONPATH (which may contain probes) affects imports
    return subprocess.Popen([sys.executable, "-I", "-c", _START], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                            stderr=subprocess.DEVNULL)  # fmt: skip


def _exactly(descriptor: int, count: int, ends: float) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        remaining_s = ends - time.monotonic()
        if remaining_s <= 0 or not select.select([descriptor], [], [], remaining_s)[0]:
            raise TimeoutError
        part = os.read(descriptor, min(count - len(parts), 1 << 20))
        if not part:
            raise EOFError
        parts += part
    return bytes(parts)


def read_all(paths: Sequence[Path], *, deadline_s: float = DEADLINE_S) -> list[Flight | FlightError]:
    """Each file's Flight, or the error why there is none, in the order given."""
    results: dict[int, Flight | FlightError] = {}
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    here = sum(_size(path) for path in paths) <= IN_PROCESS_BYTES
    for number, path in enumerate(paths):
        if here and not _pickled(path):
            results[number] = worker.outcome(worker.answer(path))
        else:
            waiting.put(number)
    count = min(os.cpu_count() or 1, -(-waiting.qsize() // PER_WORKER))

    def drain() -> None:
        reader = Worker()
        try:
            while True:
                number = waiting.get_nowait()
                results[number] = reader.read(paths[number], deadline_s)
        except queue.Empty:
            return
        finally:
            reader.close()

    threads = [threading.Thread(target=drain, name=f"flight-{number}") for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [results[number] for number in range(len(paths))]


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0  # reading it reports the error


def _pickled(path: Path) -> bool:
    try:
        with open_file(path) as file:
            return file.read(1) == b"\x80"
    except OSError:
        return False  # reading it reports the error
