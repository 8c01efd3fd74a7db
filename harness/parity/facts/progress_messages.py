"""What a long comparison says while it goes on: nothing at first, then where it is, now and then."""

from __future__ import annotations

import time
from collections.abc import Callable

Told = Callable[[str], None]  # takes what is being done, as often as it is done

FIRST_S = 2.0  # chosen: nobody wonders what a command does before that
EVERY_S = 5.0  # chosen: often enough to show that it is alive, and no flood of a log


def nobody(doing: str) -> None:
    """Nobody listens."""


class Patience:
    """Passes on to `say` what is being done, once it takes `FIRST_S` seconds and then every `EVERY_S`."""

    def __init__(self, say: Told, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._say, self._clock = say, clock
        self._next = clock() + FIRST_S

    def __call__(self, doing: str) -> None:
        now = self._clock()
        if now >= self._next:
            self._next = now + EVERY_S
            self._say(doing)
