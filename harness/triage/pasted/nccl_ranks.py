"""The rank of each process by the lines that NCCL writes when it has made a communicator (NCCL_DEBUG=INFO):

    node1:4711:4801 [0] NCCL INFO comm 0x55d0 rank 0 nranks 8 cudaDev 0 busId 1000 commId 0xf3 - Init COMPLETE

The prefix is host, pid and thread. Ranks are those of the largest communicator in which all pasted processes are.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field

_LINE = re.compile(
    r"(?P<host>[\w.-]{1,255}):(?P<pid>\d{1,10}):\d{1,10} \[-?\d{1,3}\] NCCL INFO (?:\w{1,40} )?comm 0x[0-9a-f]{1,16} "
    r"rank (?P<rank>\d{1,7}) nranks (?P<size>\d{1,7}) cudaDev \d{1,3}(?:[^\n]{0,200}? commId 0x(?P<id>[0-9a-f]{1,16}))?"
)
_WORD = " nranks "
MAX_COMMUNICATOR_LINES = 200_000  # of all texts; a job of 1,024 ranks with 20 communicators each writes 20,000


@dataclass(frozen=True, order=True)
class Communicator:
    """A communicator of `size` ranks. `identity`: its commId, which NCCL writes since 2.19; empty before."""

    size: int
    identity: str


@dataclass
class NcclRanks:
    """Takes texts. members: communicator -> (host, pid) -> the ranks that the process had in it."""

    members: dict[Communicator, dict[tuple[str, int], set[int]]] = field(default_factory=dict)
    _lines: int = 0

    def feed(self, text: str) -> bool:
        """Take a text. Returns whether it has such a line."""
        before = self._lines
        for match in _LINE.finditer(text) if _WORD in text else ():
            if self._lines >= MAX_COMMUNICATOR_LINES:
                break
            self._lines += 1
            members = self.members.setdefault(Communicator(int(match["size"]), match["id"] or ""), {})
            members.setdefault((match["host"], int(match["pid"])), set()).add(int(match["rank"]))
        return self._lines > before

    def of(self, pids: Collection[int]) -> dict[int, tuple[str, int]]:
        """Pid -> its host and rank, of those of `pids` that are in the largest of their communicators; empty where
        these are in several, where one of them has several ranks or hosts, or where two have one rank."""
        mine = [each for each, members in self.members.items() if any(pid in pids for _, pid in members)]
        largest = [each for each in mine if each.size == max(each.size for each in mine)]
        everybody = {place for each in largest for place in self.members[each] if place[1] in pids}
        for communicator in largest:
            members = self.members[communicator]
            ranks = [rank for place in everybody for rank in members.get(place, ())]
            hosts = {pid: host for host, pid in everybody}
            if everybody <= members.keys() and len(ranks) == len(set(ranks)) == len(everybody) == len(hosts):
                return {pid: (host, next(iter(members[host, pid]))) for pid, host in hosts.items()}
        return {}
