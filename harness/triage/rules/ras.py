"""Rules about NCCL's RAS: which ranks have launched fewer collectives than others, and which do not answer.

RAS is one look, so a rank that has launched fewer may be on its way: it is named as what was seen. It is a culprit only
in a job that was watched and stood still, and only if it waits in no collective itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from harness.triage.communicators import Communicator, Lack, Member, Share, Status
from harness.triage.evidence import PASTED
from harness.triage.graph import Subject
from harness.triage.pasted import ras
from harness.triage.rules.pasted import one_look
from harness.triage.rules.ruling import Case, Ruling
from harness.triage.rules.standing import MAX_LINES, MAX_NAMED
from reports.text import agreeing

ECHO = "Remote process error"  # NCCL reports it of a peer
_AGAIN = "ncclras -v   # again in a minute: while the job advances, the counts increase"
_STACK = "py-spy dump -p PID   # of each rank, those that are named here first: where it stands"
_STATE = "ps -o pid,stat,wchan,cmd -p PID   # on the host that is named here: stopped, in the kernel, or gone"
_EVERY_RANK = "ncclras -f json   # NCCL 2.28.7 and later: the counts of every rank"


@dataclass(frozen=True)
class Split:
    """Ranks of a communicator that differ in one count. `behind`: those below the highest count, `ahead`: the others.

    operation: what is counted.
    """

    communicator: Communicator
    operation: str
    behind: tuple[Share, ...]
    ahead: Share

    @property
    def size(self) -> int:
        """How many ranks are behind."""
        return sum(share.size for share in self.behind)

    @property
    def ranks_behind(self) -> list[Member]:
        """Those of the ranks that are behind that RAS lists."""
        return [member for share in self.behind for member in share.members]

    def waits(self, rank: Member) -> bool | None:
        """Whether the process of a rank is ahead, so that it may wait for those behind. None where RAS does not say."""
        if rank in self.ranks_behind:
            return False
        if not rank.pid:
            return None
        if any(member.process == rank.process for member in self.ranks_behind):
            return False
        lists_all = all(share.size == len(share.members) for share in (*self.behind, self.ahead))
        return any(member.process == rank.process for member in self.ahead.members) if lists_all else None

    def __str__(self) -> str:
        shares = sorted((*self.behind, self.ahead), key=lambda share: share.size)
        launched = ", ".join(f"{_who(share)} {share.value}" for share in shares[:MAX_LINES])
        return f"{self.operation} in communicator {self.communicator.name}: {launched}"


def pasted(case: Case) -> Ruling | None:
    """INSUFFICIENT: what a pasted answer of RAS shows. Stacks beside it say where the ranks stand."""
    if case.evidence.source != PASTED or case.groups or not case.evidence.ras:
        return None
    statuses = _statuses(case)
    facts = _facts(statuses)
    lacks = [lack for status in statuses for lack in status.lacks]
    facts = facts or tuple(_of_lack(lack) for lack in lacks if not lack.ranks)
    beside = one_look(case)
    if beside is not None and not facts:
        return None
    cut = tuple(dict.fromkeys(status.cut for status in statuses if status.cut))
    return Ruling(
        "INSUFFICIENT",
        facts[0] if facts else _even(statuses, cut=bool(cut)),
        evidence=(*facts[1:MAX_LINES], *(beside.evidence if beside else ())),
        missing=(*cut, *map(_missing, lacks), "a second look: whether the counts stand still is not known from one"),
        place=beside.place if beside else "",
        next=_next(statuses),
    )


def live(case: Case) -> Ruling | None:
    """K4 in a job that was watched, else INSUFFICIENT: RAS names ranks for which others wait."""
    if case.evidence.source == PASTED or not case.graph.stuck():
        return None
    statuses = _statuses(case)
    facts = _facts(statuses)
    if not facts:
        return None
    late = _late(chain.from_iterable(map(_splits, statuses)))
    subjects = [subject for member in late if (subject := _subject(case, member))]
    idle = [subject for subject in subjects if not (subject.stuck or subject.progress or subject.pending)]
    if not case.evidence.stall_s or not idle or len(idle) < len(late):
        return Ruling("INSUFFICIENT", facts[0], evidence=facts[1:MAX_LINES], next=_next(statuses))
    return Ruling(
        "HUNG",
        f"{case.names(subject.key for subject in idle)} launched fewer collectives than the others, by NCCL RAS",
        "K4",
        {subject.key: f"{subject.state()}; {facts[0]}" for subject in idle},
        place=case.waited_in(subject.key for subject in idle),
        evidence=facts[:MAX_LINES],
        next=(_STACK, "read its code there: what it waits for"),
    )


def _next(statuses: Sequence[Status]) -> tuple[str, ...]:
    if any(status.dead or status.silent for status in statuses):
        return _STATE, _STACK, _AGAIN
    return (_AGAIN, _STACK, _EVERY_RANK) if any(status.uneven for status in statuses) else (_STACK, _AGAIN)


def _of_lack(lack: Lack) -> str:
    """What RAS says is wrong where the text does not say with whom."""
    counts = f"of {lack.operation} counts " if lack.operation else ""
    return f"NCCL RAS reports {lack.kind} {counts}in {_place(lack)}; which ranks it means is missing"


def _missing(lack: Lack) -> str:
    """What is not read of an answer, in words."""
    if lack.ranks:
        ranks = f"{lack.ranks} {agreeing(lack.ranks, 'rank', 'ranks')}"
        return f"the {lack.operation} counts of {ranks} of {_place(lack)}: they are not in the text, or in another form"
    what = f"the {lack.operation} counts of the ranks" if lack.operation else f"the lines below {lack.kind}"
    return f"{what} of {_place(lack)}: they are not in the text, or in another form (ncclras -v)"


def _place(lack: Lack) -> str:
    return lack.communicator if lack.communicator.startswith("group ") else f"communicator {lack.communicator}"


def _statuses(case: Case) -> list[Status]:
    return [ras.status(answer) for answer in case.evidence.ras.values()]


def _subject(case: Case, member: Member) -> Subject | None:
    """The process of a rank, if its pid is that of a single process; RAS knows its host by an address only."""
    subjects = [subject for subject in case.live() if subject.process.pid == member.pid]
    return subjects[0] if len(subjects) == 1 else None


def _facts(statuses: Sequence[Status]) -> tuple[str, ...]:
    """What RAS says against processes: dead, in error, without an answer, behind, in another state."""
    splits = [split for status in statuses for split in _splits(status)]
    uneven = [communicator for status in statuses for communicator in status.uneven]
    errors = [share for communicator in uneven for share in communicator.errors]
    facts = [
        *(f"NCCL RAS considers {who} dead" for status in statuses for who in _processes(status, status.dead)),
        *(f"{_who(share)} reported to NCCL RAS: {share.value}" for share in errors if share.value != ECHO),
        *(f"{who} does not answer NCCL RAS" for status in statuses for who in _processes(status, status.silent)),
        *_behind(splits),
        *(f"the states of communicator {communicator.name} differ: {_shares(communicator.states)}"
          for communicator in uneven if communicator.states),
        *(f"{_who(share)} reported to NCCL RAS: {share.value}, which is an echo"
          for share in errors if share.value == ECHO),
    ]  # fmt: skip
    return tuple(dict.fromkeys(facts))


def _behind(splits: Sequence[Split]) -> Iterator[str]:
    """A line about those for which the others wait, if RAS shows it, and one about each count that differs."""
    late = _late(splits)
    if swapped := list(_swapped(splits)):
        yield from swapped
    elif late:
        yield _behind_most(late, next(split for split in splits if late[0] in split.ranks_behind))
    elif splits:
        yield "NCCL RAS: counts of collectives differ, and do not say for whom the others wait"
    yield from map(str, splits)


def _behind_most(late: Sequence[Member], split: Split) -> str:
    """A line about ranks that have launched fewer operations than the others."""
    launched = next(share.value for share in split.behind if late[0] in share.members)
    who = _who(Share(launched, len(late), tuple(late)))
    what = "collectives" if split.operation == "collective" else split.operation
    others = f"{split.ahead.size} others" if split.ahead.size > 1 else "the other"
    return (
        f"NCCL RAS: {who} {agreeing(len(late), 'has', 'have')} launched {launched} {what}, {others} {split.ahead.value}"
    )


def _swapped(splits: Sequence[Split]) -> Iterator[str]:
    """Few ranks of a communicator that are behind in one operation and ahead in another: they ran that one instead."""
    for split in splits:
        members = frozenset(split.ranks_behind)
        instead = [
            further
            for further in splits
            if further.communicator is split.communicator and frozenset(further.ahead.members) == members
        ]
        if instead and len(members) == split.size < split.ahead.size:
            who = _who(Share("", split.size, split.behind[0].members if len(split.behind) == 1 else ()))
            others = f"{split.ahead.size} others launched {split.operation}"
            yield f"NCCL RAS: {who} launched {instead[0].operation} where {others}"


def _late(splits: Iterable[Split]) -> list[Member]:
    """Ranks that are behind and may wait for nobody: the fewer of their communicator, and ahead in no other one."""
    splits = list(splits)
    late: dict[tuple[str, int], Member] = {}
    for split in splits:
        if split.size > split.ahead.size or len(split.ranks_behind) < split.size:
            continue
        free = [member for member in split.ranks_behind if all(further.waits(member) is False for further in splits)]
        late |= {member.process if member.pid else ("", -1 - member.rank): member for member in free}
    return list(late.values())


def _splits(status: Status) -> Iterator[Split]:
    for communicator in status.uneven:
        for operation, shares in communicator.counts.items():
            ahead = max(shares, key=_value, default=None)
            if ahead is not None and len(shares) > 1:
                yield Split(communicator, operation, tuple(share for share in shares if share is not ahead), ahead)


def _value(share: Share) -> int:
    return share.value if isinstance(share.value, int) else 0


def _processes(status: Status, processes: Iterable[tuple[str, int]]) -> Iterator[str]:
    """The processes with their ranks, where a communicator names them."""
    silent = (member for communicator in status.uneven for member in communicator.silent)
    ranks = {member.process: member for member in silent if member.pid}
    for host, pid in sorted(processes):
        yield str(ranks.get((host, pid), f"process {pid} on {host}"))


def _shares(shares: Sequence[Share]) -> str:
    return ", ".join(f"{_who(share)} {share.value}" for share in shares[:MAX_LINES])


def _who(share: Share) -> str:
    """The ranks of a share in few words: "rank 1 (pid 7 on 10.0.0.2)", "ranks 0, 2, 3", "26 ranks"."""
    if share.size == 1 and share.members:
        return str(share.members[0])
    if share.size == len(share.members) <= MAX_NAMED:
        return f"ranks {', '.join(str(member.rank) for member in share.members)}"
    return f"{share.size} ranks" if share.size > 1 else "1 rank"


def _even(statuses: Sequence[Status], *, cut: bool) -> str:
    communicators = sum(status.communicators for status in statuses)
    if cut:
        return "NCCL RAS: the answer is not complete, and what is there blames nobody"
    if not communicators:
        return "NCCL RAS has no data about communicators"
    several = "all communicators" if communicators > 1 else "the communicator"
    return f"NCCL RAS: the ranks of {several} have launched equally many collectives, nobody is behind"
