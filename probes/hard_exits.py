"""Calls of `os._exit`, which ends a process at once: no atexit function runs, and nothing else would tell that the
process ended by its own will."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from probes.handled_errors import Place, called_at


def watch(before: Callable[[int, Place | None], None]) -> None:
    """Have `before` called with the status and the caller's place, in this process and its forked children, before
    `os._exit` ends one. The process ends whatever `before` raises. A second call does nothing."""
    leave: Any = os._exit
    if getattr(leave, "of_harness", False):
        return

    def _exit(status: int) -> None:
        try:
            before(status, called_at(sys._getframe(1)))
        finally:
            leave(status)

    _exit.__module__, _exit.__qualname__ = "os", "_exit"  # pickled by its name, as the target of a process may be
    _exit.of_harness = True  # type: ignore[attr-defined]
    os._exit = _exit  # type: ignore[assignment]
