"""When a rank is called slow, and the ranking of all ranks of a group.

A balanced job has a last rank in every collective as well, and some rank is last more often than the others. So a rank
is called slow only if all of this holds:

1. It came last so often that ranks which are last by chance, each as likely as the other, would show it in one of
   10,000 jobs (`CHANCE`). The bound is binomial, and counts all ranks and groups that were looked at.
2. It came last in more than half of the collectives in the first half of the record, and again in the second: it stays
   slow. One long sample, or a slow start, does neither.
3. The others had all come by then, and waited for it longer in the median than the others are apart from each other.
4. That waiting is a material share of the time (`MATERIAL`).

Only collectives in which somebody waited count: of several that follow each other without work, ranks come to the later
ones together, in any order. Which rank came last has no part in that choice, so it does not change the odds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median, median_low

from harness.triage.slow.rounds import Round, Rounds
from reports.model import Lateness

CHANCE = 1e-4  # chosen: a look a minute at one balanced job would name somebody once a week if 2 to 4 did not hold
# Share of the time, chosen: one step in twenty. It names nobody by itself: of three gloo ranks with equal work, on two
# cores at a load of 20, the one that came last most often did so in 22 of 103 collectives, which took 7 % of the time.
MATERIAL = 0.05


def lateness(measured: Rounds, tests: int) -> list[Lateness]:
    """The ranking of a group, who came last most often first. `tests`: ranks and groups that are looked at in all.

    If no rank alone is slow, the ranks of one host may be slow together.
    """
    each: dict[tuple[int, ...], str] = {(rank,): measured.host_of[rank] for rank in sorted(measured.bounds_ns)}
    rows = _ranked(measured, each, tests)
    if any(row.slow for row in rows):
        return rows
    together = _by_host(measured)
    of_hosts = _ranked(measured, together, tests) if together else []
    return [*(row for row in of_hosts if row.slow), *rows]


def _by_host(measured: Rounds) -> dict[tuple[int, ...], str]:
    """The ranks of each host; nothing unless every host has as many, and more than one."""
    by_host: dict[str, list[int]] = {}
    for rank in sorted(measured.bounds_ns):
        by_host.setdefault(measured.host_of[rank], []).append(rank)
    sizes = {len(ranks) for ranks in by_host.values()}
    even = len(sizes) == 1 and len(by_host) > 1 and min(sizes) > 1
    return {tuple(ranks): host for host, ranks in by_host.items()} if even else {}


def _ranked(measured: Rounds, units: Mapping[tuple[int, ...], str], tests: int) -> list[Lateness]:
    """One row for each unit: a rank, or all ranks of a host, which come when half of them have."""
    per_round_ns = measured.elapsed_ns / len(measured.rounds)
    waited = [each for each in measured.rounds if max(each.late_ns.values()) > MATERIAL * per_round_ns]
    gaps: dict[tuple[int, ...], dict[int, float]] = {unit: {} for unit in units}  # unit -> round -> how late it was
    scatter = []
    for number, each in enumerate(waited):
        at = {unit: median_low(each.late_ns[rank] for rank in unit) for unit in units}
        latest = max(at, key=lambda unit: at[unit])
        others = [unit for unit in units if unit != latest]
        scatter.append(max(at[unit] for unit in others) - min(at[unit] for unit in others))
        gap = min(at[latest] - at[unit] - measured.apart_ns(latest[0], unit[0]) for unit in others)
        if gap > 0:
            gaps[latest][number] = gap
    rows = [
        _row(measured, unit, host, gaps[unit], waited)
        for unit, host in units.items()
    ]  # fmt: skip
    rows = [
        replace(row, slow=_is_slow(row, gaps[row.ranks], median(scatter), len(units), tests)) if scatter else row
        for row in rows
    ]
    return sorted(rows, key=lambda row: (-row.last, -row.share, row.ranks))


def _row(
    measured: Rounds, unit: tuple[int, ...], host: str, gaps: Mapping[int, float], waited: Sequence[Round]
) -> Lateness:
    ops = {waited[number].op for number in gaps}
    others = [rank for rank in measured.bounds_ns if rank not in unit]
    return Lateness(
        ranks=unit,
        host=host,
        op=ops.pop() if len(ops) == 1 else "",
        last=len(gaps),
        of=len(waited),
        median_s=median(gaps.values()) / 1e9 if gaps else 0.0,
        share=sum(gaps.values()) / measured.elapsed_ns if measured.elapsed_ns > 0 else 0.0,
        bound_s=max(measured.apart_ns(unit[0], rank) for rank in others) / 1e9,
    )


def _is_slow(row: Lateness, gaps: Mapping[int, float], scatter_ns: float, units: int, tests: int) -> bool:
    half = row.of // 2
    early = sum(number < half for number in gaps)
    stays = 2 * early > half and 2 * (row.last - early) > row.of - half
    apart = row.median_s * 1e9 > scatter_ns and row.share >= MATERIAL
    return stays and apart and by_chance(row.last, row.of, 1 / units) * units * tests <= CHANCE


def by_chance(last: int, of: int, likely: float) -> float:
    """The probability to come last so often or more, of `of` times, if each time it is `likely`."""
    if last <= 0:
        return 1.0
    logs = math.log(likely), math.log1p(-likely)
    return min(1.0, sum(
        math.exp(math.lgamma(of + 1) - math.lgamma(k + 1) - math.lgamma(of - k + 1) + k * logs[0] + (of - k) * logs[1])
        for k in range(last, of + 1)
    ))  # fmt: skip
