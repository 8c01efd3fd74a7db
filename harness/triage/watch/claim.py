"""The lock of a watch directory. Two watches that write into one directory would mix their jobs."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shlex
import socket
import stat
from pathlib import Path

from harness.errors import BadInput
from harness.other_paths import another_out
from probes.files import FILE_MODE

NAME = "watch.lock"


def _no_lock(path: Path, what: str) -> BadInput:
    return BadInput(f"{path} is {what}: it would be written over", fix=f"rm {shlex.quote(str(path))}")


class Claim:
    """The sole right to write into a watch directory, until `release` or the end of this process.

    Raises BadInput, which names the other watch, if a running one has the directory.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / NAME
        self._descriptor = -1
        while self._descriptor < 0:
            self._descriptor = self._locked(directory)
        try:
            os.ftruncate(self._descriptor, 0)
            os.write(self._descriptor, f"pid {os.getpid()} on host {socket.gethostname()}\n".encode())
        except OSError:  # the disk is full
            self.release()
            raise

    def _locked(self, directory: Path) -> int:
        """The lock file, open and locked; -1 where the watch that had it has just removed it, and another file is, or
        will be, the lock."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            descriptor = os.open(self._path, flags, FILE_MODE)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise _no_lock(self._path, "a link") from error
            raise
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise _no_lock(self._path, "no plain file")
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            owner = os.read(descriptor, 1000).decode(errors="replace").strip()
            os.close(descriptor)
            raise BadInput(
                f"{directory} is written by another watch ({owner or 'which has just begun'})",
                fix=another_out(directory),
            ) from error
        if self._is_at_path(descriptor):
            return descriptor
        os.close(descriptor)
        return -1

    def _is_at_path(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(os.stat(self._path), os.fstat(descriptor))
        except OSError:  # removed
            return False

    def release(self) -> None:
        """Release the directory; a second call does nothing."""
        if self._descriptor < 0:
            return
        # It is removed while it is locked, so that nobody removes the lock file of the next watch.
        with contextlib.suppress(OSError):
            if self._is_at_path(self._descriptor):
                self._path.unlink()
        os.close(self._descriptor)
        self._descriptor = -1
