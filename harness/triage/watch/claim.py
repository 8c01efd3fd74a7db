"""The lock of a watch directory. Two watches that write into one directory would mix their jobs."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shlex
import socket
from pathlib import Path

from harness.errors import BadInput
from probes.files import FILE_MODE

NAME = "watch.lock"


class Claim:
    """The sole right to write into a watch directory, until `release` or the end of this process.

    Raises BadInput, which names the other watch, if a running one has the directory.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / NAME
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            owner = os.read(self._descriptor, 1000).decode(errors="replace").strip()
            os.close(self._descriptor)
            raise BadInput(
                f"{directory} is written by another watch ({owner or 'which has just begun'})",
                fix=f"harness watch --out {shlex.quote(f'{directory}-2')} -- COMMAND",
            ) from error
        os.ftruncate(self._descriptor, 0)
        os.write(self._descriptor, f"pid {os.getpid()} on host {socket.gethostname()}\n".encode())

    def release(self) -> None:
        """Release the directory; a second call does nothing."""
        if self._descriptor < 0:
            return
        with contextlib.suppress(OSError):  # the directory was removed meanwhile
            self._path.unlink()
        os.close(self._descriptor)
        self._descriptor = -1
