"""Waiting for another process, for as long as a busy machine takes."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(condition: Callable[[], object], seconds: float = 600.0, what: Callable[[], str] = str) -> None:
    """Return once the condition holds; fail with what `what` says then."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds:.0f} s: {what()}"
        time.sleep(0.05)
