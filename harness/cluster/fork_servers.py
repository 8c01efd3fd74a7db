"""The fork servers of a cluster: one for each interpreter, which imports modules while Ray starts."""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.cluster.ray_start import ONE_NODE
from scenarios import forked

WAITING = 64  # processes that may connect while a server imports: a run has about ten


@dataclass(frozen=True)
class Preload:
    """What the actors of one interpreter need: its modules, and the variables with which they are imported."""

    python: str
    env: dict[str, str]
    modules: tuple[str, ...]


class ForkServers:
    """Started by `start`; `end` ends them, but not the processes that they forked.

    For an interpreter without a fork server, the command is the interpreter itself.

    lent: sockets of fork servers that another process keeps, by interpreter.
    sockets: those, and the sockets of the servers that `start` started.
    """

    def __init__(self, wanted: Iterable[Preload], lent: Mapping[str, str] | None = None) -> None:
        self._wanted = {preload.python: preload for preload in wanted}
        self.sockets = dict(lent or {})
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._servers: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        if not self._wanted:
            return
        self._folder = tempfile.TemporaryDirectory(prefix="rlhf-fork-", ignore_cleanup_errors=True)
        nothing = subprocess.DEVNULL
        for place, (python, preload) in enumerate(self._wanted.items()):
            self.sockets[python] = f"{self._folder.name}/{place}"
            with socket.socket(socket.AF_UNIX) as listener:  # a process that connects before the server is ready waits
                listener.bind(self.sockets[python])
                listener.listen(WAITING)
                argv = [python, "-P", "-m", "scenarios.forkserver", str(listener.fileno()), *preload.modules]
                self._servers.append(
                    subprocess.Popen(
                        argv,
                        env={**os.environ, ONE_NODE: "0", **preload.env},
                        pass_fds=[listener.fileno()],
                        stdin=nothing,
                        stdout=nothing,
                        stderr=nothing,
                        start_new_session=True,
                    )
                )

    def command(self, python: str) -> str:
        """A shell command that runs a script as `python SCRIPT` would."""
        if python not in self.sockets:
            return shlex.quote(python)
        return shlex.join([python, "-I", "-S", str(Path(forked.__file__)), self.sockets[python], python])

    def end(self) -> None:
        for server in self._servers:
            server.kill()
            server.wait()
        self._servers, self.sockets = [], {}
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None
