"""What a rule returns (`Ruling`), and what it may ask (`Case`)."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import PurePath

from harness.triage.evidence import PASTED, Evidence
from harness.triage.flight.model import Comparison, GroupState
from harness.triage.graph import Graph, Subject
from harness.triage.graph.subjects import ended
from reports.headline import beginning
from reports.model import Lateness
from reports.sections.triage import ranks
from reports.text import and_more

NO_MAJORITY = "neither side has a majority, so nobody is named"
MOST_NAMED = 2  # of one kind in a headline
MAX_RUNS = 3  # ranges of ranks in a headline: "0, 2-7, 9 and 4 more"
MAX_ROOTS = 8  # pids that a printed command names
_PLAIN = re.compile(r"[\w./=:,@%+-]+( [\w./=:,@%+-]+)*")  # a command line whose words need no quotes, without secrets
YOUNG_S = 3.0  # a younger wait or transition, at one look at a live job, proves nothing
# Advice where a watched job waits for somebody whom nothing names.
NAME_WHO_IS_ASKED = "give each wait for an answer a timeout, and say in its error who was asked"


class Live(str):
    """A piece of advice about processes that live: it is of no use once the job has been ended."""

    __slots__ = ()


class Native(Live):
    """A piece of advice to look at stacks of C: py-spy stops the process for it and needs the right to trace, which a
    container lacks. It comes after all that always works."""

    __slots__ = ()

    @classmethod
    def dump(cls, what: str, pid: int | str = "PID") -> Native:
        return cls(f"py-spy dump --native --pid {pid}   # {what}; in a container it takes --cap-add SYS_PTRACE")


class Watching(str):
    """A piece of advice to watch a job or its next run: it is of no use where the evidence is a watch's."""

    __slots__ = ()


@dataclass(frozen=True)
class Ruling:
    """The answer of a rule. `culprits`: node -> why; empty if nobody may be named."""

    verdict: str  # HUNG, SLOW, HEALTHY, INSUFFICIENT
    reason: str  # the headline: one fact, of at most 20 words (`tests/unit/triage/test_triage_headlines.py`)
    hang: str = ""
    culprits: dict[str, str] = field(default_factory=dict)
    cycle: tuple[str, ...] = ()  # nodes of which each is seen to wait for the next, and the last for the first
    place: str = ""
    frames: dict[str, str] = field(default_factory=dict)  # node -> a frame that tells more than the node's own
    missing: tuple[str, ...] = ()
    next: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()  # further facts, one each; a culprit's own facts are in its `why`
    lateness: tuple[Lateness, ...] = ()  # who keeps the others waiting, if nothing hangs
    waiting: dict[str, str] = field(default_factory=dict)  # node -> in what it waits, where nothing says for whom
    about: tuple[str, ...] = ()  # nodes with which its advice deals ("PID"), if they are not those it names
    absent: tuple[str, ...] = ()  # nodes of which it says that they never go on, if they are not those it names

    @property
    def stands_on(self) -> tuple[str, ...]:
        """The nodes of which it says that they never go on."""
        return self.absent or (*self.cycle, *self.culprits)


@dataclass(frozen=True)
class Case:
    """Everything that a rule looks at."""

    evidence: Evidence
    comparison: Comparison | None
    graph: Graph
    excused: frozenset[str] = frozenset()  # nodes whose wait somebody may end (rules/alive.py): not to blame

    @property
    def groups(self) -> tuple[GroupState, ...]:
        return self.comparison.groups if self.comparison else ()

    def subject(self, key: str) -> Subject:
        return self.graph.subjects[key]

    def live(self) -> list[Subject]:
        """Processes that were seen, are alive, and are no launcher."""
        return [
            subject
            for subject in self.graph.subjects.values()
            if subject.has_process and not subject.ended and not subject.launcher
        ]

    def suspects(self) -> list[Subject]:
        """Live processes whose wait nobody may be able to end."""
        return [subject for subject in self.live() if subject.key not in self.excused]

    def rings(self) -> list[tuple[str, ...]]:
        """The rings of waits, without those through a process whose wait somebody may end."""
        return [members for members in self.graph.cycles if not self.excused & set(members)]

    def sinks(self) -> list[Subject]:
        """The processes at which waiting ends."""
        return [self.subject(key) for key in self.graph.sinks]

    def awaited(self) -> set[str]:
        return {wait.target for wait in self.graph.waits}

    def cut_off(self) -> list[Subject]:
        """Processes that wait for an answer of Ray while the head of its cluster takes no connection. What they do
        meanwhile, such as asking again, is no progress."""
        return [each for each in self.live() if self.evidence.ray_lost and each.doing.within("ray_get")]

    def moving(self, keys: Iterable[str]) -> list[Subject]:
        """Those of `keys` that advance."""
        return [self.subject(key) for key in keys if self.subject(key).progress]

    def names(self, keys: Iterable[str]) -> str:
        """Name processes: "rank 1 (actor) and rank 2"; in a job of several hosts "rank 1 on node7"; from three ranks
        on "ranks 0-2"."""
        several = len({process.host for process in self.evidence.processes}) > 1
        ends = [self.subject(key) for key in keys]
        if len(ends) > 2 and all(end.rank is not None and end.alone for end in ends):
            return _together(ends, several=several)
        hosts = [f" on {end.process.host}" if several and end.has_process and end.rank is not None and end.alone else ""
                 for end in ends]  # fmt: skip
        labels = [f"{end.label}{host}" for end, host in zip(ends, hosts, strict=True)]
        if len(labels) > 3:
            labels = [*labels[:2], f"{len(labels) - 2} more"]
        return " and ".join([", ".join(labels[:-1]), labels[-1]] if len(labels) > 1 else labels)

    def again(self) -> str:
        """The command that looks at this job once more, as it is typed."""
        if self.evidence.directories:
            return shlex.join(["harness", "triage", *self.evidence.directories])
        if self.evidence.pasted_files:
            return shlex.join(["harness", "triage", *self.evidence.pasted_files])
        here = [process for process in self.evidence.processes if process.samples and not ended(process)]
        if not here and self.evidence.path:  # files alone: nobody is left to look at
            return shlex.join(["harness", "triage", self.evidence.path])
        folders = {str(PurePath(dump).parent) for dump in self.evidence.dumps}
        if not here and self.evidence.source != PASTED and 0 < len(folders) <= MAX_ROOTS:
            return shlex.join(["harness", "triage", *sorted(folders)])
        if len({process.host for process in here}) > 1:
            return "harness triage"
        pids = {process.pid for process in here}
        # The pid of a driver finds the workers that its cluster started.
        roots = [
            str(process.pid) for process in here if process.ppid not in pids and not process.title.startswith("ray::")
        ]
        return " ".join(["harness triage", *roots[:MAX_ROOTS]])

    def attach(self) -> str:
        """The command that watches a job that runs here and nobody watches; empty for other evidence."""
        here = [process for process in self.evidence.processes if process.samples and not ended(process)]
        if self.evidence.source != "live" or self.evidence.is_watched or len({process.host for process in here}) != 1:
            return ""
        pids = {process.pid for process in here}
        root = next((process.pid for process in here if process.ppid not in pids), here[0].pid)
        return Live(f"harness watch --pid {root}   # the job that runs already")

    def watched(self) -> str:
        """The command that watches the next run of this job, as its first process was started."""
        looked_at = [process for process in self.evidence.processes if process.samples]
        here = [process for process in looked_at if not ended(process)] or looked_at
        pids = {process.pid for process in here}
        roots = [process for process in here if process.ppid not in pids]
        command = roots[0].command if len(roots) == 1 and not roots[0].title else ""
        return f"harness watch -- {command if _PLAIN.fullmatch(command) and ' -c ' not in command else 'COMMAND'}"

    def waited_in(self, keys: Iterable[str]) -> str:
        """The operation in which these processes are waited for, in words."""
        targets = set(keys)
        for wait in self.graph.waits:
            if wait.target in targets and wait.layer != "process":
                return wait.place
        # No layer names an operation: say what a waiter does, a launcher that waits for its children last.
        waiters = [self.subject(wait.waiter) for wait in self.graph.waits if wait.target in targets]
        waiter = min(waiters, key=lambda subject: (subject.doing.kind == "join", subject.rank is None), default=None)
        if waiter is None:
            return ""
        if waiter.doing.kind in ("queue", "join") and waiter.frame:
            return waiter.frame  # its operation is a function of a library, such as `_recv`
        return (waiter.pending.op if waiter.pending else waiter.doing.op) or waiter.frame


def _together(ends: list[Subject], *, several: bool) -> str:
    """Ranks in few words, with their role and host if all share it."""
    roles = {end.role for end in ends}
    hosts = {end.process.host for end in ends}
    role = f" ({next(iter(roles))})" if len(roles) == 1 and not roles & {"", "process", "rank"} else ""
    host = f" on {next(iter(hosts))}" if several and len(hosts) == 1 and "" not in hosts else ""
    numbers = sorted(end.rank for end in ends if end.rank is not None)
    gaps = [at for at in range(1, len(numbers)) if numbers[at] != numbers[at - 1] + 1]
    displayed = numbers[: gaps[MAX_RUNS - 1]] if len(gaps) >= MAX_RUNS else numbers
    return f"ranks {ranks(displayed)}{and_more(len(numbers) - len(displayed))}{role}{host}"


def brief(text: str, words: int = 7) -> str:
    """The beginning of a text written by others, such as an error, for a headline."""
    parts = text.split()
    return text if len(parts) <= words else f"{beginning(parts, words)} …"


Rule = Callable[[Case], Ruling | None]
