"""Delta debugging: find the minimal sets of differences that turn good into bad. Without input and output.

A binary search finds the shortest bad prefix of the differences; its last difference is necessary. That difference is
kept, and the search continues in the prefix before it until the kept differences are bad by themselves. After A.
Zeller and R. Hildebrandt, "Simplifying and isolating failure-inducing input", 2002, with the search of U. Junker's
QuickXplain, 2004: a cause of k out of n differences takes about k log2(n) comparisons.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from harness.bisect.ordered import narrow
from reports.bisect_model import Call

Chosen = frozenset[int]
Ask = Callable[[Chosen, int], Call]  # (the applied differences, the expected number of further comparisons)


@dataclass(frozen=True)
class Outcome:
    """The result of a search.

    causes: disjoint sets of differences. Each is bad alone, and no longer bad without any one of its members.
    remainder: the call on all other differences together; "good" means that there is no further cause.
    wrong_end: all differences or no difference, where that end was not classified as expected; None otherwise.
    """

    causes: tuple[tuple[int, ...], ...] = ()
    remainder: Call = "good"
    wrong_end: Chosen | None = None


def causes(count: int, ask: Ask) -> Outcome:
    """Search the differences 0 to `count` - 1. No difference should be good and all of them bad; both are checked
    first.
    """
    memo: dict[Chosen, Call] = {}

    def once(chosen: Iterable[int], remaining: int) -> Call:
        key = frozenset(chosen)
        if key not in memo:
            memo[key] = ask(key, remaining)
        return memo[key]

    everything, steps = frozenset(range(count)), count.bit_length()
    for end, call, remaining in ((everything, "bad", steps + 4), (frozenset[int](), "good", steps + 3)):
        if once(end, remaining) != call:
            return Outcome(wrong_end=end)
    minimal_causes: list[tuple[int, ...]] = []
    pool = list(range(count))
    pool_call: Call = "bad"
    while pool_call == "bad":
        cause = _one_cause(pool, once)
        minimal_causes.append(cause)
        pool = [index for index in pool if index not in cause]
        pool_call = once(pool, 1)
    return Outcome(tuple(minimal_causes), pool_call)


def _one_cause(pool: list[int], ask: Callable[[Iterable[int], int], Call]) -> tuple[int, ...]:
    """Return a minimal bad subset of `pool`, which is bad as a whole."""
    required: list[int] = []
    while True:
        needed, pool = _needed(required, pool, ask)
        required += needed
        if ask(required, 2) == "bad":
            return _without_what_is_not_needed(required, ask)


def _needed(
    required: list[int], pool: list[int], ask: Callable[[Iterable[int], int], Call]
) -> tuple[list[int], list[int]]:
    """Return (the last differences of the shortest bad prefix, the differences before them).

    A prefix of `pool` is bad if it is bad together with `required`. The first list has more than one element where
    the comparisons in between could not be judged.
    """
    good, bad = narrow(0, len(pool), lambda length, remaining: ask([*required, *pool[:length]], remaining + 2))
    return pool[good:bad], pool[:good]


def _without_what_is_not_needed(chosen: list[int], ask: Callable[[Iterable[int], int], Call]) -> tuple[int, ...]:
    """Remove each difference that is not needed, until the set is 1-minimal.

    The binary search alone does not guarantee this: the verdict need not be monotone in the set of differences, and
    differences that could not be judged were included.
    """
    for index in chosen:
        fewer = [kept for kept in chosen if kept != index]
        if ask(fewer, 2) == "bad":
            return _without_what_is_not_needed(fewer, ask)
    return tuple(sorted(chosen))
