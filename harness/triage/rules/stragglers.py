"""Who is slow in a job in which nothing hangs, by its recorders: on top of the ruling of the other rules."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from harness.triage.evidence import Evidence
from harness.triage.flight.model import Comparison
from harness.triage.graph.edges import Names
from harness.triage.rules.ruling import Case, Live, Ruling, Watching
from harness.triage.slow import Ranking, counters, rank_groups
from reports.model import Lateness

MOST_ROWS = 3  # ranks that a verdict ranks in words; `Triage.lateness` has all
GOES_ON = ("HEALTHY", "SLOW")


def with_lateness(case: Case, ruling: Ruling) -> Ruling:
    """The ruling with who is slow. HEALTHY becomes SLOW if the recorders of all ranks show that somebody stays slow.

    A job that hangs, or whose evidence is insufficient, is left as it is: who came late before is not why. At a stall,
    who came late is told and decides nothing.
    """
    if ruling.verdict not in GOES_ON or ruling.place == "a breakpoint":
        return ruling
    ranking = ranked(case.evidence, case.comparison)
    lines = tuple(_lines(case, ranking))
    if not ranking.slow:
        return replace(ruling, evidence=(*ruling.evidence, *lines), lateness=ranking.rows)
    lines += tuple(counters.lines(case.evidence.processes, {key for row in ranking.slow for key in row.keys}))
    if case.evidence.stall_s:  # a watch saw that nothing moves, and what it asks is why
        return replace(ruling, evidence=(*lines, *ruling.evidence), lateness=ranking.rows)
    ends = [case.subject(key) for row in ranking.slow for key in row.keys]
    pids = [end.process.pid for end in ends if end.process.pid and not end.ended]
    return Ruling(
        "SLOW",
        headline(case, ranking.slow),
        "K7",
        place=ranking.slow[0].group,
        evidence=(*lines, f"at this look: {ruling.reason}"),
        next=(
            *(Live(f"see where its time goes: py-spy top --pid {pid}") for pid in pids[:1]),
            *(Live(f"{case.again()}   # in a minute: whether the same rank comes last again") for _ in pids[:1]),
            Watching("for the next run: harness watch --slow -- COMMAND, which says who stays slow"),
        ),
        lateness=ranking.rows,
    )


def ranked(evidence: Evidence, comparison: Comparison | None) -> Ranking:
    """Rank the members of all groups whose recorders were compared."""
    hosts = {process.key: process.host for process in evidence.processes}
    return rank_groups(comparison.groups if comparison else (), Names.of(evidence, comparison), hosts)


def headline(case: Case, slow: Sequence[Lateness]) -> str:
    """Say who is slow, and by what measure."""
    if len(slow) > 1:
        return f"{case.names(key for row in slow for key in row.keys)} are slow: they keep the others waiting"
    [row] = slow
    if len(row.keys) > 1:
        return f"host {row.host} is slow: its {len(row.keys)} ranks {_measure(row)}"
    return f"{case.names(row.keys)} is slow: it {_measure(row)}"


def _measure(row: Lateness) -> str:
    """How often it came last, and how long the others waited: "came last in 97 of 100 all_reduce, 180 ms in the
    median"."""
    what = row.op or "collectives"
    late = f", {_worded(row.median_s)} in the median" if row.last else ""
    return f"came last in {row.last:,} of {row.of:,} {what}{late}"


def _lines(case: Case, ranking: Ranking) -> Iterable[str]:
    for row in ranking.slow:
        bound = f"; the clocks that were compared are off by {_worded(row.bound_s)} at most" if row.bound_s else ""
        yield f"{case.names(row.keys)} {_measure(row)}, in {row.group}: {row.share:.0%} of the time{bound}"
    behind = [row for row in ranking.rows if row.last and not row.slow]
    behind.sort(key=lambda row: -row.share)
    begin = "next" if ranking.slow else "nobody stays slow"
    for row in behind[: MOST_ROWS if ranking.slow else 1]:
        yield f"{begin}: {case.names(row.keys)} {_measure(row)}, in {row.group}: {row.share:.1%} of the time"
    for why, count in ranking.untested.items():
        groups = "1 group" if count == 1 else f"{count:,} groups"
        yield f"who is slow in {groups} was not tested: {why}"


def _worded(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{1000 * seconds:.0f} ms"
