"""The first bad one of an ordered row of candidates, as `git bisect` finds it. Pure: who asks is passed in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from reports.bisect_model import Call

Ask = Callable[[int, int], Call]  # (candidate, how many more comparisons are expected, this one included)


@dataclass(frozen=True)
class Outcome:
    """`suspects`: candidates that may be the first bad one, in order; the last one is bad, those before it could not
    be judged. `wrong_end`: an end that is not what it was said to be, so that nothing was searched. `confirmed`: the
    last suspect was bad a second time."""

    last_good: int = 0
    suspects: tuple[int, ...] = ()
    wrong_end: int | None = None
    confirmed: bool = False


def first_bad(count: int, ask: Ask, again: Ask) -> Outcome:
    """Search candidates 0 to `count` - 1, the first of which should be good and the last bad.

    Both ends are asked first, and the result is asked `again` at the end. Without a skipped candidate these are at most
    ceil(log2(count)) + 3 questions. Each candidate is asked once.
    """
    expected = steps_between(0, count - 1) + 1
    for end, call, remaining in ((count - 1, "bad", expected + 2), (0, "good", expected + 1)):
        if ask(end, remaining) != call:
            return Outcome(wrong_end=end)
    low, high = narrow(0, count - 1, lambda index, remaining: ask(index, remaining + 1))
    return Outcome(low, tuple(range(low + 1, high + 1)), confirmed=again(high, 1) == "bad")


def narrow(low: int, high: int, ask: Ask) -> tuple[int, int]:
    """(the last good one, the first that is known to be bad) between `low`, which is good, and `high`, which is bad.
    What lies between the two was skipped."""
    skipped: set[int] = set()
    while gaps := list(_gaps(low, high, skipped)):
        # What cannot be built lies side by side: probe the row beside a judged candidate, away from what was skipped.
        beside = [gap for gap in gaps if gap[0] == low + 1 or gap[1] == high - 1]
        first, last = max(beside or gaps, key=lambda gap: gap[1] - gap[0])
        probe = (first + last) // 2
        call = ask(probe, steps_between(low, high))
        if call == "good":
            low = probe
        elif call == "bad":
            high = probe
        else:
            skipped.add(probe)
    return low, high


def steps_between(low: int, high: int) -> int:
    """Questions that a search between a good and a bad candidate needs where none is skipped."""
    return max(high - low - 1, 0).bit_length()


def _gaps(low: int, high: int, skipped: set[int]) -> Iterator[tuple[int, int]]:
    """The longest rows of candidates between both that were not asked, each by its first and last."""
    first = low + 1
    for index in range(low + 1, high + 1):
        if index == high or index in skipped:
            if first < index:
                yield first, index - 1
            first = index + 1
