"""The differences that turn good into bad, each cause as small as it can be: delta debugging. Pure.

A cause is found by binary search for the shortest bad prefix, whose last difference is needed; it is held, and the
search goes on before it until those that are held are bad by themselves. After A. Zeller and R. Hildebrandt,
"Simplifying and isolating failure-inducing input", 2002, with the search of U. Junker's QuickXplain, 2004: a cause of k
out of n differences takes about k log2(n) questions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from harness.bisect.ordered import narrow
from reports.bisect_model import Call

Chosen = frozenset[int]
Ask = Callable[[Chosen, int], Call]  # (differences that are applied, how many more comparisons are expected)


@dataclass(frozen=True)
class Outcome:
    """`causes`: disjoint sets of differences that are each bad alone, and no longer bad without any one of theirs.
    `remainder`: what all other differences together are; "good": there is no other cause. `wrong_end`: with all of
    them, or none, it is not what it was said to be."""

    causes: tuple[tuple[int, ...], ...] = ()
    remainder: Call = "good"
    wrong_end: Chosen | None = None


def causes(count: int, ask: Ask) -> Outcome:
    """Search differences 0 to `count` - 1: none of them should be good, all of them bad. Both are asked first."""
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
    """A minimal bad subset of `pool`, which is bad."""
    required: list[int] = []
    while True:
        needed, pool = _needed(required, pool, ask)
        required += needed
        if ask(required, 2) == "bad":
            return _without_what_is_not_needed(required, ask)


def _needed(
    required: list[int], pool: list[int], ask: Callable[[Iterable[int], int], Call]
) -> tuple[list[int], list[int]]:
    """(the last differences of the shortest prefix of `pool` that is bad together with `required`, those before them):
    more than one where what lies between could not be judged."""
    good, bad = narrow(0, len(pool), lambda length, remaining: ask([*required, *pool[:length]], remaining + 2))
    return pool[good:bad], pool[:good]


def _without_what_is_not_needed(chosen: list[int], ask: Callable[[Iterable[int], int], Call]) -> tuple[int, ...]:
    """1-minimal: a verdict need not be monotone, and what could not be judged came along."""
    for index in chosen:
        fewer = [kept for kept in chosen if kept != index]
        if ask(fewer, 2) == "bad":
            return _without_what_is_not_needed(fewer, ask)
    return tuple(sorted(chosen))
