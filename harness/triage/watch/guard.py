"""Watches the runs that the harness itself starts: a thread of the controller that ticks a watchdog."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Callable
from pathlib import Path

from harness.errors import HarnessError
from harness.triage.watch.observe import Observer
from harness.triage.watch.watchdog import Means, Stall, Watchdog
from harness.triage.watch.watched_command import sockets, watched
from probes.files import make_folder
from probes.heartbeat import PERIOD_S
from probes.signal_codes import exit_code_of
from scenarios.engines.engine_processes import descendants


class Guard:
    """A context manager around one cluster that the harness started.

    `stall` is set, once, when the job below this process hangs. `directory`: for beats, evidence and the verdict. `say`
    takes one line for the user, from the guard's thread.
    """

    def __init__(self, directory: Path, stall_s: float, say: Callable[[str], None] = lambda line: None) -> None:
        self.directory, self.stall_s = directory, stall_s
        self.stall: Stall | None = None
        self._say = say
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._sockets = ""

    def __enter__(self) -> Guard:
        make_folder(self.directory)
        self._sockets = sockets()
        root = os.getpid()
        foreign = frozenset(pid for pid in descendants(root) if pid != root)  # such as children of a notebook
        means = Means(observer=Observer(self.directory, (root,), foreign=foreign))
        self._dog = Watchdog(self.directory, (root,), self.stall_s, means=means, say=self._say)
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        self._dog.over(_exit_code(error))
        self._dog.close()
        if self._sockets:
            shutil.rmtree(self._sockets, ignore_errors=True)
        if not self._dog.retention:  # nobody needs the beats of a run that ended well
            shutil.rmtree(self.directory, ignore_errors=True)

    def environment(self, variables: dict[str, str], role: str) -> dict[str, str]:
        """The variables of one actor, with the probes switched on in it and in the processes that it starts."""
        return watched({**variables, "RLHF_HARNESS_ROLE": role}, self.directory, self._sockets)

    def follow(self, pid: int) -> None:
        """Watch the processes below `pid` too: those of a cluster that was up before."""
        self._dog.observer.roots = (*self._dog.observer.roots, pid)

    def _run(self) -> None:
        try:
            while not self._ended.wait(PERIOD_S) and self.stall is None:
                self.stall = self._dog.tick()
        finally:
            self._dog.close()  # once more with how the runs ended, when they have


def _exit_code(error: BaseException | None) -> int:
    """The exit code of a command that this error ends."""
    if isinstance(error, HarnessError):
        return error.exit_code
    if isinstance(error, KeyboardInterrupt):
        return exit_code_of(signal.SIGINT)
    return 0 if error is None else 1
