"""Keeps the last words of a command: its standard error is passed on as it comes, and the end of it is kept.

A small process stands in between, for a file too: the harness and other programs write into the same file, and their
lines are no words of the command. It passes everything on, ends with the last process that can write, and outlives the
harness, so that no output is lost if the harness dies.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import socket
import subprocess
import sys
import tempfile
import termios
import tty
from pathlib import Path

from harness.triage.collect.proc import STDERR
from harness.triage.collect.roles import LAST_WORDS
from scenarios.engines import last_words

DRAIN_S = 10.0  # chosen: what is in the pipe is passed on in milliseconds; an overloaded host may take seconds
LATE_S = 5.0  # chosen: whoever ends a job because of an error that it printed does so at once
LATE = ".late"  # suffix of the file with the byte at which the last LATE_S of the command's words begin
# Copies descriptor 0 to 1 and keeps the end in a file of at most twice KEPT. It ignores keys and signals, which are
# meant for the command. When the harness closes its end of the socket, the command has ended, and all that it wrote can
# be read; once that is copied, the program closes the socket too. A daemon may write for hours after that.
PROGRAM = f"""
import os, select, signal, sys, time
for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE, signal.SIGTTOU):
    signal.signal(number, signal.SIG_IGN)
kept = int(sys.argv[2])
file = os.open(sys.argv[1], os.O_RDWR)
try:
    late = os.open(sys.argv[1] + "{LATE}", os.O_WRONLY)
except OSError:  # nothing is said of the times, and everything is passed on
    late = -1
harness = int(sys.argv[3])  # the socket; -1 for none, or once it is closed
size = 0
parts = []  # when each part of the last seconds came, and the byte at which it begins
def answer():
    begins = [begin for at, begin in parts if at > time.monotonic() - {LATE_S}]
    try:
        os.write(late, str(min(begins, default=size)).encode())
    except OSError:  # a full disk
        pass
    os.close(harness)
while True:
    ready = select.select([0] if harness < 0 else [0, harness], [], [])[0]
    if 0 not in ready:
        answer()
        harness = -1
        continue
    try:
        part = os.read(0, 65536)
    except OSError:  # a terminal whose last writer has gone
        break
    if not part:
        break
    rest = part
    try:
        while rest:
            rest = rest[os.write(1, rest):]
    except OSError:  # nobody reads any more
        pass
    try:
        now = time.monotonic()
        parts = [(at, begin) for at, begin in parts if at > now - {LATE_S}] + [(now, size)]
        size += os.write(file, part)
        if size > 2 * kept:
            parts = [(at, max(0, begin - size + kept)) for at, begin in parts]
            end = os.pread(file, kept, size - kept)
            os.ftruncate(file, 0)
            os.lseek(file, 0, 0)
            size = os.write(file, end)
    except OSError:  # a full disk
        pass
if harness >= 0:
    answer()
"""
KEPT = 1 << 17  # chosen, in bytes: an engine's traceback and what its siblings log after it


class StderrTail:
    """Gives the command a standard error, `descriptor` (None: ours), and knows its last words afterwards."""

    def __init__(self, into: int = STDERR) -> None:
        self.descriptor: int | None = None
        self._into = into
        self._file = Path()
        self._passing: subprocess.Popen[bytes] | None = None
        self._end: socket.socket | None = None  # closed on both sides once the command's words are all in the file

    def __enter__(self) -> StderrTail:
        try:
            os.fstat(self._into)
            self._open()
        except OSError:  # standard error is closed, or no file can be made: there is nothing to keep
            self.descriptor = None
        return self

    def started(self) -> None:
        """Call this once the command has its standard error: our copy is closed, so that its end is noticed."""
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None

    def words(self, ended: int | None) -> str:
        """Why the command ended, by what it printed: one sentence, empty if it printed nothing.

        `ended`: its exit code, negative for a signal.
        """
        self._drain()
        if not self._file.is_file():
            return ""
        late: dict[Path, int] | None = None
        with contextlib.suppress(OSError, ValueError):  # no time is known after a full disk
            late = {self._file: int(self._late.read_text())}
        return last_words.root_cause({self._file: 0}, ended, late)

    def text(self) -> str:
        """The end of what the command printed to its standard error; call it after `words`."""
        if not self._file.is_file():
            return ""
        with open(self._file, "rb") as stream:
            stream.seek(max(0, self._file.stat().st_size - 2 * KEPT))
            return stream.read(2 * KEPT).decode(errors="replace")

    def __exit__(self, *error: object) -> None:
        self.started()
        if self._passing is not None:
            self._drain()
            self._file.unlink(missing_ok=True)
            self._late.unlink(missing_ok=True)

    def _drain(self) -> None:
        """Wait until all that the command wrote has been passed on and is in the file; once, and at most DRAIN_S."""
        if self._end is None:
            return
        with self._end, contextlib.suppress(OSError):
            self._end.settimeout(DRAIN_S)
            self._end.shutdown(socket.SHUT_WR)
            self._end.recv(1)
        self._end = None

    @property
    def _late(self) -> Path:
        return self._file.with_name(self._file.name + LATE)

    def _open(self) -> None:
        descriptor, name = tempfile.mkstemp(prefix=LAST_WORDS)
        os.close(descriptor)
        self._file = Path(name)
        os.close(os.open(self._late, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        reader, self.descriptor = _terminal(self._into) if os.isatty(self._into) else os.pipe()
        self._end, its_end = socket.socketpair()
        with its_end:
            try:
                self._passing = subprocess.Popen(
                    [sys.executable, "-I", "-S", "-c", PROGRAM, name, str(KEPT), str(its_end.fileno())], stdin=reader,
                    stdout=self._into, stderr=subprocess.DEVNULL, start_new_session=True, pass_fds=(its_end.fileno(),),
                )  # fmt: skip
            finally:
                os.close(reader)


def _terminal(like: int) -> tuple[int, int]:
    """(reading end, writing end) of a raw terminal of the same size, which does not change what passes through it."""
    reader, writer = pty.openpty()
    tty.setraw(writer)
    with contextlib.suppress(OSError):
        fcntl.ioctl(writer, termios.TIOCSWINSZ, fcntl.ioctl(like, termios.TIOCGWINSZ, bytes(8)))
    return reader, writer
