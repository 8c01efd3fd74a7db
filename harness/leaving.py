"""What is removed when this process ends, also where it leaves without Python's own handlers (`harness.entry`); and
with whom it ends."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
from collections.abc import Callable

_pending: list[Callable[[], object]] = []


def then(remove: Callable[[], object]) -> None:
    """Call `remove` once when this process ends."""
    if not _pending:
        atexit.register(now)
    _pending.append(remove)


def now() -> None:
    """Call all of them, the last one first; what one raises keeps no other from its turn."""
    while _pending:
        with contextlib.suppress(Exception):
            _pending.pop()()


def with_parent(pid: int) -> None:
    """Let SIGTERM end this process when its parent `pid` has ended, be it by SIGKILL."""
    import ctypes

    from probes.identity import PR_SET_PDEATHSIG

    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != pid:  # before we asked for it
        os.kill(os.getpid(), signal.SIGTERM)
