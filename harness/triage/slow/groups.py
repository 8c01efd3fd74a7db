"""The ranking of all groups of a job.

A rank that waits for a slow one in one group comes late to the collectives of its other groups. So of the ranks that
are slow in some group, only those are named that wait for no slow rank in another one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from harness.triage.flight.model import GroupState
from harness.triage.graph.edges import Names, title
from harness.triage.slow.rounds import rounds
from harness.triage.slow.standard import lateness
from reports.model import Lateness

UNKNOWN = "?"  # begins the name of the host of a rank whose host is not known: its clock is its own


@dataclass(frozen=True)
class Ranking:
    """Who came last, group by group. `untested`: why other groups say nothing -> how many they are."""

    rows: tuple[Lateness, ...] = ()
    untested: Mapping[str, int] = field(default_factory=dict)

    @property
    def slow(self) -> tuple[Lateness, ...]:
        """The rows of who is slow, each once, by the group that waits for it most."""
        by_keys: dict[tuple[str, ...], Lateness] = {}
        for row in sorted(self.rows, key=lambda row: -row.share):
            if row.slow:
                by_keys.setdefault(row.keys, row)
        return tuple(by_keys.values())


def rank_groups(groups: Iterable[GroupState], names: Names, host_of: Mapping[str, str]) -> Ranking:
    """Rank all members of all groups.

    `names`: of the members of groups, as keys of the graph. `host_of`: such a key -> host, where it is known.
    """
    members = [({rank: names.key(state, rank) for rank in state.ranks}, state) for state in groups if state.shares]
    measured = [(keys, state, rounds(state, _hosts(keys, host_of))) for keys, state in members]
    tested = [(keys, state, each) for keys, state, each in measured if not isinstance(each, str)]
    rows_of = [
        (set(keys.values()), [_named(row, keys, state) for row in lateness(each, len(tested))])
        for keys, state, each in tested
    ]
    rows = _without_victims(rows_of)
    return Ranking(tuple(rows), Counter(why for _, _, why in measured if isinstance(why, str)))


def _hosts(keys: Mapping[int, str], host_of: Mapping[str, str]) -> dict[int, str]:
    return {rank: host_of.get(key) or f"{UNKNOWN}{rank}" for rank, key in keys.items()}


def _named(row: Lateness, keys: Mapping[int, str], state: GroupState) -> Lateness:
    host = "" if row.host.startswith(UNKNOWN) else row.host
    return replace(row, host=host, group=title(state), keys=tuple(keys[rank] for rank in row.ranks))


def _without_victims(rows_of: Sequence[tuple[set[str], Sequence[Lateness]]]) -> Iterator[Lateness]:
    """All rows, but a rank that waits for a slow rank in another group is not slow itself.

    `rows_of`: for each group, the keys of its members, and its ranking.
    """
    slow = [(members, [set(row.keys) for row in rows if row.slow]) for members, rows in rows_of]
    for _, rows in rows_of:
        for row in rows:
            mine = set(row.keys)
            waits = any(mine <= members and any(not other & mine for other in others) for members, others in slow)
            yield replace(row, slow=row.slow and not waits)
