"""Append-only event journal: one file per process, one JSON object per line, one write(2) per line.

A line is acknowledged when `write` returns: it is then in the kernel, and SIGKILL cannot remove it. Nothing is
buffered. Buffered JSONL, compressed streams and columnar batches all lost lines, or became unreadable, when their
writer was killed.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from probes import redaction
from probes.errors import FULL, FULL_SUFFIX, RecordingError
from probes.files import FILE_MODE, make_folder
from probes.lines import encode_sealed


class AppendOnly:
    """A new file to which whole records are appended, each with one write(2) on an O_APPEND descriptor.

    A record that was written only in part is removed again, so a full disk leaves whole records. Threads may share
    the file. Raises RuntimeError in a forked child, because two processes would count one sequence, and in a signal
    handler that interrupted a record.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Raises FileExistsError where the file exists, RecordingError where it cannot be made."""
        self.path = Path(path)
        self.records = 0
        self.lost = 0  # records that could not be written
        self.checksum = 0  # CRC-32 of all whole records, where this kind of file has one
        self.kinds: defaultdict[str, int] = defaultdict(int)  # how many records of each kind were written
        self._size = 0  # bytes of whole records
        # The record that is being written: its kind, its length in bytes, and the checksum of the file after it.
        self._pending: tuple[str, int, int] | None = None
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._busy = False
        try:
            make_folder(self.path.parent)
        except OSError as error:
            raise RecordingError.of(self.path.parent, error) from error
        try:
            self._fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, FILE_MODE)
        except FileExistsError:
            raise
        except OSError as error:
            raise RecordingError.of(self.path, error) from error

    @property
    def closed(self) -> bool:
        return self._fd < 0

    def check(self) -> None:
        """Raise RuntimeError in a forked child, ValueError when the file is closed."""
        if os.getpid() != self._pid:
            raise RuntimeError(f"{self.path} was opened before a fork: start a recorder of its own in the child")
        if self._fd < 0:
            raise ValueError(f"{self.path} is closed: nothing more can be recorded to it")

    def append(self, kind: str, content: Any) -> None:
        """Append the record of this content. Raises RecordingError when it cannot be written."""
        self.check()
        with self._lock:
            if self._busy:
                raise RuntimeError(f"{self.path} is in the middle of a record: record after the signal handler")
            self._busy = True
            try:
                if self._pending:  # an interrupt came during the last record, perhaps after it was written
                    self._settle()
                if self._fd < 0:  # closed while this thread waited
                    self.check()
                record, checksum = self._encode(kind, content)
                self._write(kind, record, checksum)
            finally:
                self._busy = False

    def _encode(self, kind: str, content: Any) -> tuple[bytes, int]:
        """Return the next record, and the checksum of the file after it (0 where this kind of file has none)."""
        raise NotImplementedError

    def _write(self, kind: str, record: bytes, checksum: int) -> None:
        self._pending = kind, len(record), checksum
        try:
            done = os.write(self._fd, record)
            if done < len(record):  # the disk is nearly full, or the record exceeds the 2 GiB of one write
                done += self._write_rest(memoryview(record)[done:])
            # No function calls from here on: Python runs signal handlers between calls, and a handler may raise.
            self.kinds[kind] += 1
            self._size += done
            self.records += 1
            self.checksum = checksum
            self._pending = None
        except OSError as error:
            if error.errno is None:  # raised by a signal handler of the job: the kernel's errors have a number
                raise
            self.lost += 1
            self._settle()
            if error.errno in FULL:
                self._mark_full()
            raise RecordingError.of(self.path, error) from error

    def _write_rest(self, record: memoryview) -> int:
        """Write all of `record` and return its length in bytes."""
        done = 0
        while done < len(record):
            done += os.write(self._fd, record[done:])
        return done

    def _mark_full(self) -> None:
        """Leave an empty file beside this one, for which a full disk still has room; it explains why the records
        stop.
        """
        with contextlib.suppress(OSError):
            os.close(os.open(f"{self.path}{FULL_SUFFIX}", os.O_WRONLY | os.O_CREAT, FILE_MODE))

    def _settle(self) -> None:
        """Make file and counts agree after a write that was interrupted: count a whole record, remove a partial one."""
        if self._pending is None:
            return
        kind, length, checksum = self._pending
        size = os.fstat(self._fd).st_size
        if size == self._size + length:
            self.kinds[kind] += 1
            self._size = size
            self.records += 1
            self.checksum = checksum
        elif size > self._size:
            os.ftruncate(self._fd, self._size)
        self._pending = None

    def close(self) -> None:
        """Close the file, and remove it where nothing was recorded. A second call does nothing."""
        if self.closed:
            return
        self.check()
        with self._lock:
            if self._pending:
                self._settle()
            descriptor, self._fd = self._fd, -1
            try:
                os.close(descriptor)
            except OSError as error:  # a network file system reports a full disk here
                raise RecordingError.of(self.path, error) from error
            if not self.records:
                self.path.unlink(missing_ok=True)


class Journal(AppendOnly):
    """The events of one process. `clock`: returns nanoseconds of a monotonic clock."""

    def __init__(self, path: str | os.PathLike[str], clock: Callable[[], int] = time.monotonic_ns) -> None:
        super().__init__(path)
        self._clock = clock

    def write(self, kind: str, fields: Mapping[str, Any]) -> None:
        """Append one event without secrets. Raises ValueError when a field is called seq, t_ns or kind."""
        self.append(kind, redaction.event(kind, fields))

    def _encode(self, kind: str, content: Mapping[str, Any]) -> tuple[bytes, int]:
        return encode_sealed(self.records, self._clock(), kind, content, self.checksum)
