"""Find the first bad candidate in an ordered list, as `git bisect` does. The comparison is passed in as a function."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from reports.bisect_model import Call

Ask = Callable[[int, int], Call]  # (candidate, the expected number of further comparisons including this one)


@dataclass(frozen=True)
class Outcome:
    """The result of a search.

    last_good: the last candidate that is known to be good.
    suspects: the candidates that may be the first bad one, in order. The last one is bad; the others could not be
    judged.
    wrong_end: the end that was not classified as expected, in which case nothing was searched; None otherwise.
    confirmed: whether the last suspect was bad in a second comparison.
    """

    last_good: int = 0
    suspects: tuple[int, ...] = ()
    wrong_end: int | None = None
    confirmed: bool = False


def first_bad(count: int, ask: Ask, again: Ask) -> Outcome:
    """Search the candidates 0 to `count` - 1, the first of which should be good and the last bad.

    Both ends are checked first, and the result is confirmed with `again` at the end. Without a skipped candidate this
    takes at most ceil(log2(count)) + 3 comparisons. `ask` is called once for each candidate.
    """
    expected = steps_between(0, count - 1) + 1
    for end, call, remaining in ((count - 1, "bad", expected + 2), (0, "good", expected + 1)):
        if ask(end, remaining) != call:
            return Outcome(wrong_end=end)
    low, high = narrow(0, count - 1, lambda index, remaining: ask(index, remaining + 1))
    return Outcome(low, tuple(range(low + 1, high + 1)), confirmed=again(high, 1) == "bad")


def narrow(low: int, high: int, ask: Ask) -> tuple[int, int]:
    """Return (the last good candidate, the first known bad one) between `low`, which is good, and `high`, which is
    bad.

    The candidates between the two were skipped.
    """
    skipped: set[int] = set()
    while gaps := list(_gaps(low, high, skipped)):
        # Candidates that cannot be built are usually neighbours. So probe the middle of a gap next to a judged
        # candidate, away from the skipped ones.
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
    """Return the number of comparisons between a good and a bad candidate where no candidate is skipped."""
    return max(high - low - 1, 0).bit_length()


def _gaps(low: int, high: int, skipped: set[int]) -> Iterator[tuple[int, int]]:
    """Yield the longest intervals of untried candidates between `low` and `high`, each as (first, last)."""
    first = low + 1
    for index in range(low + 1, high + 1):
        if index == high or index in skipped:
            if first < index:
                yield first, index - 1
            first = index + 1
