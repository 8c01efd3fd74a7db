"""Append-only event journal: one file per process, one JSON object per line, one write(2) per line.

A line is acknowledged when `write` returns; it is then in the kernel, and SIGKILL cannot take it. Nothing is buffered:
buffered JSONL, compressed streams and columnar batches all lost lines, or broke, when their writer was killed.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from probes import redaction
from probes.errors import FULL, FULL_SUFFIX, RecordingError
from probes.files import FILE_MODE, make_folder
from probes.lines import encode_line


class AppendOnly:
    """A new file to which whole records are appended, each with one write(2) on an O_APPEND descriptor.

    A record that fits only in part is taken back, so a full disk leaves whole records. Threads may share one.
    RuntimeError in a forked child, because two processes would count one sequence, and in a signal handler that
    interrupted a record.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Raises FileExistsError when the file is there already, RecordingError when it cannot be made."""
        self.path = Path(path)
        self.records = 0
        self.lost = 0  # records that could not be written
        self.checksum = 0  # CRC-32 of all whole records, where the records of this file need it
        self.kinds: dict[str, int] = {}  # how many records of each kind were written
        self._size = 0  # bytes of whole records
        self._pending: tuple[str, bytes] | None = None  # kind and bytes of the record that is being written
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

    def append(self, kind: str, encode: Callable[[int, int], bytes]) -> None:
        """Append the record that `encode` makes of its number and of the CRC-32 of all records before it.

        Raises RecordingError when it cannot be written.
        """
        self.check()
        with self._lock:
            if self._busy:
                raise RuntimeError(f"{self.path} is in the middle of a record: record after the signal handler")
            self._busy = True
            try:
                if self._pending:  # a KeyboardInterrupt came, perhaps when the record was out already
                    self._settle()
                if self._fd < 0:  # closed while this thread waited
                    self.check()
                self._write(kind, encode(self.records, self.checksum))
            finally:
                self._busy = False

    def _write(self, kind: str, record: bytes) -> None:
        self._pending = kind, record
        try:
            done = os.write(self._fd, record)
            while done < len(record):  # the disk is nearly full, or more than 2 GiB were asked of one write
                done += os.write(self._fd, memoryview(record)[done:])
            self._acknowledge(kind, record)
        except OSError as error:
            if error.errno is None:  # a TimeoutError, say, of the job's signal handler: the kernel's have a number
                raise
            self.lost += 1
            self._settle()
            if error.errno in FULL:
                self._mark_full()
            raise RecordingError.of(self.path, error) from error

    def _mark_full(self) -> None:
        """Leave an empty file beside this one, which a full disk still takes: it says why the records stop."""
        with contextlib.suppress(OSError):
            os.close(os.open(f"{self.path}{FULL_SUFFIX}", os.O_WRONLY | os.O_CREAT, FILE_MODE))

    def _acknowledge(self, kind: str, record: bytes) -> None:
        """Count a record that is whole in the file."""
        checksum, count = self._checksum_after(record), self.kinds.get(kind, 0) + 1
        size = self._size + len(record)
        # No call from here on: Python runs signal handlers after calls, and one may raise.
        self.kinds[kind] = count
        self._size = size
        self.records += 1
        self.checksum = checksum
        self._pending = None

    def _checksum_after(self, record: bytes) -> int:
        return zlib.crc32(record, self.checksum)

    def _settle(self) -> None:
        """After a write that did not end: leave whole records in the file, and the counts as the file is."""
        if self._pending is None:
            return
        kind, record = self._pending
        there = os.fstat(self._fd).st_size
        if there == self._size + len(record):
            self._acknowledge(kind, record)
        elif there > self._size:
            os.ftruncate(self._fd, self._size)
        self._pending = None

    def close(self) -> None:
        """Close the file, and remove it when nothing was recorded; a second call does nothing."""
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
    """The events of one process; `clock` gives nanoseconds of a monotonic clock."""

    def __init__(self, path: str | os.PathLike[str], clock: Callable[[], int] = time.monotonic_ns) -> None:
        super().__init__(path)
        self._clock = clock

    def write(self, kind: str, fields: Mapping[str, Any]) -> None:
        """Append one event, scrubbed of secrets; ValueError when a field is called seq, t_ns or kind."""
        shown = redaction.event(kind, fields)
        self.append(kind, lambda seq, checksum: encode_line(seq, self._clock(), kind, shown, before=checksum))
