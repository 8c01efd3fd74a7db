"""Append-only event journal: one file per process, one JSON object per line, one write(2) per line.

A line is acknowledged when `write` returns; it is then in the kernel, and SIGKILL cannot take it. Nothing is buffered here:
buffered JSONL, compressed streams and columnar batches all lost lines or broke when their writer was killed.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from pathlib import Path
from typing import Any

from probes.format import encode_line


class RecordingError(OSError):
    """A record could not be written; the message is one sentence. Everything acknowledged before stays readable."""

    def __str__(self) -> str:
        return str(self.strerror)


class AppendOnly:
    """A new file on an O_APPEND descriptor to which whole records are appended, each with one write(2) where the kernel agrees.

    A record that fits only in part is taken back, so that a full disk leaves whole records. Threads may share one; a forked
    child may not use it (RuntimeError), because both processes would count the same sequence.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._pid = os.getpid()
        self._size = 0  # bytes of whole records
        self.records = 0
        self.lost = 0  # records that could not be written
        self._lock = threading.RLock()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o644)
        except FileExistsError:
            raise
        except OSError as error:
            raise _refused(self.path, error) from error

    def _own(self) -> None:
        if os.getpid() != self._pid:
            raise RuntimeError(f"{self.path} was opened before a fork: start a recorder of its own in the child process")
        if self._fd < 0:
            raise ValueError(f"{self.path} is closed: nothing more can be recorded to it")

    def append(self, record: bytes) -> None:
        self._own()
        with self._lock:
            self._append(record)

    def _append(self, record: bytes) -> None:
        try:
            done = os.write(self._fd, record)
            while done < len(record):  # a disk that is nearly full, or more than 2 GiB at once
                done += os.write(self._fd, memoryview(record)[done:])
            self._size += done
            self.records += 1
        except BaseException as error:  # also KeyboardInterrupt: whether the record went out must be known either way
            self._settle(len(record))
            if isinstance(error, OSError):
                self.lost += 1
                raise _refused(self.path, error) from error
            raise

    def _settle(self, length: int) -> None:
        """Leave the file with whole records only, and the counts as the file is."""
        there = os.fstat(self._fd).st_size
        if there == self._size + length:
            self._size += length
            self.records += 1
        elif there > self._size:
            os.ftruncate(self._fd, self._size)

    def close(self) -> None:
        """Close the descriptor; a second call does nothing."""
        if self._fd < 0:
            return
        self._own()
        descriptor, self._fd = self._fd, -1
        try:
            os.close(descriptor)
        except OSError as error:
            raise _refused(self.path, error) from error


class Journal(AppendOnly):
    """The events of one process. `clock` gives nanoseconds of a monotonic clock."""

    def __init__(self, path: str | os.PathLike[str], clock: Any = time.monotonic_ns) -> None:
        super().__init__(path)
        self._clock = clock

    def write(self, kind: str, /, **fields: Any) -> None:
        """Append one event; ValueError when a field is called seq, t_ns or kind, RecordingError when it cannot be written."""
        self._own()
        with self._lock:
            self._append(encode_line(self.records, self._clock(), kind, fields))


def _refused(path: Path, error: OSError) -> RecordingError:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    what = "the disk is full" if full else (error.strerror or str(error))
    text = f"{what}: cannot record to {path}; everything recorded before is intact"
    return RecordingError(error.errno, text, str(path))
