"""Says who stays slow in a job that runs, from one look to the next.

Each look has the recorders of all ranks, and only the collectives since the look before count. Who is slow in one look
may be unlucky, so a rank is named when two looks in a row, of different collectives, both show it.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from harness.triage.judge import triage
from harness.triage.recorders import comparison_of
from harness.triage.rules.stragglers import ranked

if TYPE_CHECKING:
    from harness.triage.evidence import Evidence
    from harness.triage.flight.model import Comparison, GroupState
    from reports.model import Verdict

# Collectives that a look needs of the group with most of them. Of two ranks it takes 15 in which somebody waited to
# name one, and in most jobs only one in a few follows work.
WINDOW = 64
NO_RECORDER = "no process has a flight recorder that could be read"


class Slowness:
    """Feed it the evidence of one look after another."""

    def __init__(self) -> None:
        self.untested: tuple[str, ...] = ()  # why groups of the last look say nothing, if none does
        self._counted: dict[tuple[str, tuple[int, ...]], int] = {}  # group -> its last collective that has counted
        self._before: frozenset[tuple[str, ...]] = frozenset()  # who was slow in the look before: nodes of the graph

    def feed(self, evidence: Evidence, comparison: Comparison | None = None) -> Verdict | None:
        """Take in a look. Returns the verdict SLOW if everybody whom it names was slow in the look before as well."""
        comparison = comparison or comparison_of(evidence)
        if comparison is None or comparison.jobs > 1:
            begun = any(process.rank is not None for process in evidence.processes)
            self.untested = (NO_RECORDER,) if begun else ()
            return None
        fresh = dataclasses.replace(comparison, groups=tuple(map(self._since, comparison.groups)))
        if max((_joint(group) for group in fresh.groups), default=0) < WINDOW:
            return None
        self._counted |= {_identity(group): _last(group) for group in fresh.groups if _joint(group)}
        ranking = ranked(evidence, fresh)
        self.untested = () if ranking.rows else tuple(ranking.untested)
        before, self._before = self._before, frozenset(row.keys for row in ranking.slow)
        if not self._before or not self._before <= before:
            return None
        verdict = triage(evidence, fresh)
        return verdict if verdict.verdict == "SLOW" else None

    def _since(self, group: GroupState) -> GroupState:
        """The group with the collectives alone that have not counted yet."""
        counted = self._counted.get(_identity(group), -1)
        if _joint(group) and _last(group) < counted:  # it was made anew, and counts from the beginning
            counted = -1
        return dataclasses.replace(group, shares={rank: share.after(counted) for rank, share in group.shares.items()})


def _identity(group: GroupState) -> tuple[str, tuple[int, ...]]:
    return group.group.name, group.group.members


def _joint(group: GroupState) -> int:
    """How many collectives of the group all of its ranks have, at most."""
    return min((len(share.seqs) for share in group.shares.values()), default=0)


def _last(group: GroupState) -> int:
    """The last collective that all of them have."""
    return min(share.seqs[-1] for share in group.shares.values())
