"""Gives each new verdict of a watch to a command of the user: a chat hook, a pager, a requeue.

The command runs in a thread and a session of its own. One that fails, hangs or does not read never holds up the watch.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable

from harness.triage.remote import token
from reports.model import Verdict

LIMIT_S = 60.0  # chosen: a hook that takes longer hangs
LAST_S = 10.0  # how long the end of the watch waits for the last notices
MAX_WAITING = 16  # verdicts that wait for the command; a watch has few, hours apart


class Notices:
    """Runs `command`, a line of sh, with each verdict as JSON on its standard input, one after another."""

    def __init__(self, command: str, say: Callable[[str], None], *, limit_s: float = LIMIT_S) -> None:
        self._command, self._say, self._limit_s = command, say, limit_s
        self._over = threading.Event()
        self._hook: subprocess.Popen[bytes] | None = None
        self._waiting: queue.Queue[bytes | None] = queue.Queue(MAX_WAITING)
        self._thread = threading.Thread(target=self._run, name="verdict notices", daemon=True)
        self._thread.start()

    def put(self, verdict: Verdict) -> None:
        """Give a verdict to the command, which runs beside. Returns at once."""
        try:
            self._waiting.put_nowait(verdict.to_json().encode())
        except queue.Full:
            self._say(f"--on-verdict: {MAX_WAITING} verdicts wait for the command, so it does not get this one")

    def close(self, wait_s: float = LAST_S) -> None:
        """Wait a moment for the notices that are under way, take no more, and kill a command that runs on."""
        deadline = time.monotonic() + wait_s
        with contextlib.suppress(queue.Full):
            self._waiting.put(None, timeout=wait_s)
        self._thread.join(max(0.0, deadline - time.monotonic()))
        self._over.set()
        if self._hook is not None:
            _kill(self._hook)

    def _run(self) -> None:
        while (text := self._waiting.get()) is not None and not self._over.is_set():
            try:
                self._give(text)
            except (OSError, ValueError) as error:
                self._say(f"--on-verdict: the command cannot be run: {error}")

    def _give(self, text: bytes) -> None:
        environ = {name: value for name, value in os.environ.items() if name != token.VARIABLE}
        self._hook = hook = subprocess.Popen(
            ["/bin/sh", "-c", self._command], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, start_new_session=True, env=environ,
        )  # fmt: skip
        if self._over.is_set():
            _kill(hook)
        try:
            hook.communicate(text, self._limit_s)
        except subprocess.TimeoutExpired:
            _kill(hook)
            hook.wait()
            self._say(f"--on-verdict: the command did not end within {self._limit_s:g} s and was killed")
            return
        if hook.returncode:
            self._say(f"--on-verdict: the command ended with exit code {hook.returncode}")


def _kill(hook: subprocess.Popen[bytes]) -> None:
    if hook.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(hook.pid, signal.SIGKILL)
