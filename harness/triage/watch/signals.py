"""Passes signals that would end the harness on to the command that it watches. A terminal's keys reach both."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from types import FrameType

from harness.triage.collect import proc

# The terminal sends these to its whole foreground group, the command included. Sent by `kill`, they are passed on.
_KEYS = (signal.SIGINT, signal.SIGQUIT)
_PASSED_ON = (*_KEYS, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_ENDING = (*_KEYS, signal.SIGTERM, signal.SIGHUP)


class Passing:
    """Passes signals on to the command. `foreground`: the terminal's keys reach the command without us."""

    def __init__(self) -> None:
        self.foreground = _in_foreground()
        self._child: subprocess.Popen[bytes] | None = None
        self._early: list[int] = []
        self._looking = False
        self.asked: tuple[int, int] | None = None  # the first signal that asked for the end, and when (monotonic, ns)

    @property
    def ending(self) -> bool:
        """Whether a signal has asked for the end."""
        return self.asked is not None

    def to(self, child: subprocess.Popen[bytes]) -> None:
        """From now on signals go to `child`, including those that came earlier."""
        self._child = child
        for signum in self._early:
            self._send(signum)

    @contextlib.contextmanager
    def looking(self) -> Iterator[None]:
        """During a look after the command has ended, a signal is meant for us and raises KeyboardInterrupt."""
        self._looking = True
        try:
            yield
        finally:
            self._looking = False

    def arrived(self, signum: int, frame: FrameType | None) -> None:
        """The signal handler."""
        if self.asked is None and signum in _ENDING:
            self.asked = signum, time.monotonic_ns()
        if self._child is None:
            self._early.append(signum)
        elif self._child.poll() is None:
            self._send(signum)
        elif self._looking:
            self._looking = False
            raise KeyboardInterrupt

    def _send(self, signum: int) -> None:
        """Send a signal to the command. One that ends it goes to its whole process group, as the terminal's keys do:
        else a script would end, and what it started would be left behind."""
        assert self._child is not None
        if signum not in _ENDING:
            self._child.send_signal(signum)
        elif not self.foreground:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._child.pid, signum)
        elif signum not in _KEYS:  # the command is in our own group
            below = proc.descendants((self._child.pid,), proc.parents())
            for pid in (pid for pid in below if proc.process_group(pid) == os.getpgrp()):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signum)


@contextlib.contextmanager
def passing_on() -> Iterator[Passing]:
    """Pass signals that would end us on to the command. Ignored signals (nohup) stay ignored."""
    passing, before = Passing(), {}
    for signum in _PASSED_ON:
        handler = signal.getsignal(signum)
        if handler is not signal.SIG_IGN:
            before[signum] = handler
            signal.signal(signum, passing.arrived)
    try:
        yield passing
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


def _in_foreground() -> bool:
    try:
        terminal = os.open("/dev/tty", os.O_RDWR | os.O_CLOEXEC)
    except OSError:  # no terminal
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)
