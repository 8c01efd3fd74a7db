"""How far the wall clocks of two hosts are apart, by collectives that end for no rank before every rank has come.

A rank that waits for each collective enqueues the next one after every rank has come to the one before. So the clock of
another host can be ahead only so far that this order still holds. Where two collectives follow each other without work
in between, that bound is narrow. A job that does not wait for its collectives breaks the order, and the bounds then
contradict each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

Times = Mapping[int, int]  # rank -> nanoseconds of its host's wall clock


@dataclass(frozen=True)
class Offset:
    """By how many nanoseconds a host's clock is ahead of the first host's; off by `bound_ns` at most."""

    ahead_ns: int = 0
    bound_ns: int = 0


def offsets(arrivals: Sequence[Times], host_of: Mapping[int, str]) -> dict[str, Offset] | None:
    """The offset of each host's clock; None where the arrivals contradict each other.

    `arrivals`: of each collective, in order, and of every rank.
    """
    ranks_of: dict[str, list[int]] = {}
    for rank in sorted(host_of):
        ranks_of.setdefault(host_of[rank], []).append(rank)
    first, *others = ranks_of
    result = {first: Offset()}
    for host in others:
        least, most = _between(arrivals, ranks_of[first], ranks_of[host])
        if least > most:
            return None
        result[host] = Offset((least + most) // 2, (most - least + 1) // 2)
    return result


def _between(arrivals: Sequence[Times], here: Sequence[int], there: Sequence[int]) -> tuple[int, int]:
    """The least and the most by which the clock over there can be ahead of the one here, in nanoseconds."""
    pairs = list(pairwise(arrivals))
    least = max((max(now[rank] for rank in there) - min(then[rank] for rank in here) for now, then in pairs), default=0)
    most = min((min(then[rank] for rank in there) - max(now[rank] for rank in here) for now, then in pairs), default=-1)
    return least, most
