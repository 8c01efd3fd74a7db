"""Clean-up when this process ends, even if it exits without Python's own handlers (`harness.entry`).

Also lets the process end together with its parent.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path

_pending: list[Callable[[], object]] = []


def then(remove: Callable[[], object]) -> None:
    """Call `remove` once when this process ends."""
    if not _pending:
        atexit.register(now)
    _pending.append(remove)


def temporary_folder(prefix: str) -> Path:
    """A new folder that is removed when this process ends."""
    folder = Path(tempfile.mkdtemp(prefix=prefix)).resolve()
    then(lambda: shutil.rmtree(folder, ignore_errors=True))
    return folder


def now() -> None:
    """Call everything that is registered, the last one first. An error of one does not stop the others."""
    while _pending:
        with contextlib.suppress(Exception):
            _pending.pop()()


def with_parent(pid: int) -> None:
    """Let SIGTERM end this process when its parent `pid` ends, even by SIGKILL."""
    import ctypes

    from probes.identity import PR_SET_PDEATHSIG

    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != pid:  # the parent ended before the call above
        os.kill(os.getpid(), signal.SIGTERM)
