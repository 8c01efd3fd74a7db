"""Progress messages of a long comparison: none at first, then one every few seconds."""

from __future__ import annotations

import time
from collections.abc import Callable

ProgressCallback = Callable[[str], None]  # receives a message for each thing that is done

FIRST_S = 2.0  # chosen: a command of two seconds needs no explanation
EVERY_S = 5.0  # chosen: often enough to show progress, without flooding a log


def ignore_progress(doing: str) -> None:
    """Ignore progress messages."""


class Patience:
    """Pass progress messages on to `say` after `FIRST_S` seconds, and then at most every `EVERY_S`."""

    def __init__(self, say: ProgressCallback, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._say, self._clock = say, clock
        self._next = clock() + FIRST_S

    def __call__(self, doing: str) -> None:
        now = self._clock()
        if now >= self._next:
            self._next = now + EVERY_S
            self._say(doing)
