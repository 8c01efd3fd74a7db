"""What is removed when this process ends, also where it leaves without Python's own handlers (`harness.entry`)."""

from __future__ import annotations

import atexit
import contextlib
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
