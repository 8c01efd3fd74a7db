"""Gives each new verdict of a watch to a command of the user: a chat hook, a pager, a requeue.

The command runs in a thread and a session of its own. One that fails, hangs or does not read never holds up the watch:
when the watch ends it has a few seconds more, and is then killed.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import threading
from collections.abc import Callable

from harness.triage.remote import token
from probes import redaction
from reports.model import Verdict
from reports.text import counted

LIMIT_S = 60.0  # chosen: a hook that takes longer hangs
CLOSING_S = 5.0  # chosen: a message or a requeue takes a second, and the exit code of the job waits meanwhile
TAIL_BYTES = 4096  # of what a command prints to its standard error
READ_S = 1.0  # how long its last words are waited for when it has ended
MAX_LINE = 300  # characters of its last line
MAX_WAITING = 16  # verdicts that wait for the command; a watch has few, hours apart


class Notices:
    """Runs `command`, a line of sh, with each verdict as JSON on its standard input, one after another."""

    def __init__(self, command: str, say: Callable[[str], None], *, limit_s: float = LIMIT_S) -> None:
        self._command, self._say, self._limit_s = command, say, limit_s
        self._over = threading.Event()
        self._hook: subprocess.Popen[bytes] | None = None
        self._too_slow: subprocess.Popen[bytes] | None = None  # killed at the end, which is told once
        self._waiting: queue.Queue[bytes | None] = queue.Queue(MAX_WAITING)
        self._thread = threading.Thread(target=self._run, name="verdict notices", daemon=True)
        self._thread.start()

    def put(self, verdict: Verdict) -> None:
        """Give a verdict to the command, which runs beside. Returns at once."""
        try:
            self._waiting.put_nowait(verdict.to_json().encode())
        except queue.Full:
            self._say(f"--on-verdict: {MAX_WAITING} verdicts wait for the command, so it does not get this one")

    def close(self, wait_s: float = CLOSING_S) -> None:
        """Wait so long for the notices that are under way, and kill a command that runs on. The newest verdict is then
        given once more time: a command that hung on an early one has not seen how the job ended.
        """
        with contextlib.suppress(queue.Full):
            self._waiting.put(None, timeout=wait_s)
        self._thread.join(wait_s)
        waiting = self._taken_back()
        self._killed(wait_s)
        if waiting and self._thread.is_alive():
            self._waiting.put(waiting[-1])
            self._waiting.put(None)
            self._thread.join(wait_s)
            waiting = [*waiting[:-1], *self._taken_back()]
        self._over.set()
        self._waiting.put(None)
        self._killed(wait_s)
        if waiting:
            self._say(f"--on-verdict: the command did not get {counted(len(waiting), 'verdict')}")

    def _taken_back(self) -> list[bytes]:
        """Take the verdicts that wait for the command."""
        waiting: list[bytes] = []
        with contextlib.suppress(queue.Empty):
            while True:
                text = self._waiting.get_nowait()
                waiting += [text] if text is not None else []
        return waiting

    def _killed(self, wait_s: float) -> None:
        """Kill the command if it runs."""
        if self._hook in (None, self._too_slow) or self._hook.poll() is not None:
            return
        self._too_slow = self._hook
        _kill(self._hook)
        self._say(f"--on-verdict: the command did not end within {wait_s:g} s of the watch's end and was killed")

    def _run(self) -> None:
        while (text := self._waiting.get()) is not None and not self._over.is_set():
            try:
                self._give(text)
            except (OSError, ValueError) as error:
                self._say(f"--on-verdict: the command cannot be run: {error}")

    def _give(self, text: bytes) -> None:
        environ = {name: value for name, value in os.environ.items() if name != token.VARIABLE}
        with _Errors() as errors:
            self._hook = hook = subprocess.Popen(
                ["/bin/sh", "-c", self._command], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
                stderr=errors.written, start_new_session=True, env=environ,
            )  # fmt: skip
        if self._over.is_set():
            _kill(hook)
        try:
            hook.communicate(text, self._limit_s)
        except subprocess.TimeoutExpired:
            if not self._over.is_set():
                _kill(hook)
                self._say(f"--on-verdict: the command did not end within {self._limit_s:g} s and was killed")
            hook.wait()
            return
        if hook.returncode and not self._over.is_set() and hook is not self._too_slow:
            words = errors.last_line()
            self._say(
                f"--on-verdict: the command ended with exit code {hook.returncode}{f': {words}' if words else ''}"
            )


class _Errors:
    """The end of what a command prints to `written`, its standard error. It is read beside, and never kept whole."""

    def __init__(self) -> None:
        self._read, self.written = os.pipe()
        self._tail = b""
        self._cut = False
        self._reader = threading.Thread(target=self._follow, name="errors of a notice", daemon=True)

    def __enter__(self) -> _Errors:
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Close the end that the command has: what is read ends with the last process that writes."""
        os.close(self.written)

    def _follow(self) -> None:
        try:
            while part := os.read(self._read, TAIL_BYTES):
                tail = self._tail + part
                self._cut = self._cut or len(tail) > TAIL_BYTES
                self._tail = tail[-TAIL_BYTES:]
        finally:
            os.close(self._read)

    def last_line(self) -> str:
        """Its last line without secrets; empty if there is none that was kept whole."""
        self._reader.join(READ_S)  # a process that the command left behind may keep it open
        text = self._tail.decode(errors="replace")
        whole = text.partition("\n")[2] if self._cut else text  # half a line could hide what a secret is
        lines = [line.strip() for line in redaction.text(whole, 2 * TAIL_BYTES).splitlines() if line.strip()]
        return lines[-1][:MAX_LINE] if lines else ""


def _kill(hook: subprocess.Popen[bytes]) -> None:
    if hook.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(hook.pid, signal.SIGKILL)
