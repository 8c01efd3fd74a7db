"""Compare one verdict with the truth of its hang, and score many."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from harness.triage import directory
from harness.triage.evidence import Evidence, Process
from reports.model import Verdict
from scenarios.planted.hangs.catalog import Hang

Party = int | str


@dataclass(frozen=True)
class Outcome:
    """The result of triage for one hang.

    hang: the planted hang.
    seconds: from the stall threshold to the verdict; None without a verdict.
    wall_s: the duration of the trial.
    """

    hang: Hang
    verdict: Verdict | None  # None: no stall was suspected
    seconds: float | None = None
    wall_s: float = 0.0
    named: frozenset[Party] = frozenset()  # expected culprits that were named
    blamed: tuple[str, ...] = ()  # other parties that were named as culprits
    circled: frozenset[Party] = frozenset()  # expected members of the cycle that are in it
    frames: tuple[str, ...] = ()  # the frames of the culprits
    error: str = ""  # why the program did not behave as planned
    unrun: str = ""  # what this machine lacks to run it

    @property
    def status(self) -> str:
        if self.unrun:
            return "NOT RUN"
        return self.verdict.verdict if self.verdict else "HEALTHY"

    @property
    def named_kind(self) -> str:
        """The kind of hang that the verdict names; empty where it names none."""
        return self.verdict.triage.hang if self.verdict and self.verdict.triage else ""

    @property
    def detected(self) -> bool:
        """Whether the verdict is the right one.

        SLOW and HEALTHY count as the same verdict for a control, except with looks, because a look does not show
        slowness.
        """
        if self.error or self.unrun:
            return False
        if self.hang.reason and not (self.verdict and self.hang.reason in self.verdict.reason):
            return False
        if self.hang.looks:
            return self.status == self.hang.verdict
        return self.status == self.hang.verdict or {self.status, self.hang.verdict} <= {"SLOW", "HEALTHY"}

    @property
    def kind_right(self) -> bool:
        if not self.detected:
            return False
        return self.hang.control or not self.hang.kind or self.named_kind == self.hang.kind

    @property
    def culprits_right(self) -> bool:
        """Whether exactly the expected culprits are named, and the expected cycle is shown."""
        return (
            self.detected and not self.blamed and self.named == self.hang.culprits and self.circled == self.hang.cycle
        )

    @property
    def frame_right(self) -> bool:
        """Whether a culprit's frame names the function in which it is blocked; True where no function is expected."""
        return not self.hang.frame or any(frame.split(" in ")[-1] == self.hang.frame for frame in self.frames)

    @property
    def right(self) -> bool:
        return self.kind_right and self.culprits_right

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.hang.name, "kind": self.hang.kind, "control": self.hang.control, "verdict": self.status,
            "said_kind": self.named_kind, "reason": self.verdict.reason if self.verdict else "",
            "detected": self.detected, "seconds": self.seconds, "wall_s": round(self.wall_s, 2),
            "kind_right": self.kind_right, "culprits_right": self.culprits_right,
            "expected": sorted(map(str, self.hang.culprits)), "named": sorted(map(str, self.named)),
            "false_blame": list(self.blamed), "frames": list(self.frames), "frame_right": self.frame_right,
            "right": self.right, "error": self.error, "not_run": self.unrun,
        }  # fmt: skip


@dataclass(frozen=True)
class Score:
    """The score of one suite. `detected`, `kinds` and `culprits` count hangs; `blamed` counts hangs and controls."""

    hangs: int
    controls: int
    detected: int
    kinds: int
    culprits: int
    controls_right: int
    blamed: int  # outcomes with false blame
    slowest_s: float | None
    median_s: float | None
    wrong: tuple[str, ...] = field(default=())
    unrun: int = 0

    @property
    def passed(self) -> bool:
        return not self.wrong and self.hangs + self.controls > 0

    @property
    def line(self) -> str:
        """The summary in one line."""
        hangs = (
            f"{self.hangs} hangs: {self.detected} detected, {self.kinds} with the right kind, {self.culprits} with the "
            "right culprits"
        )
        controls = f"{self.controls} controls: {self.controls_right} right"
        speed = ""
        if self.slowest_s is not None:
            speed = f"; stall to verdict {self.median_s:.1f} s in the median, {self.slowest_s:.1f} s at most"
        unrun = f"; {self.unrun} not run" if self.unrun else ""
        return f"{hangs}; {controls}; false blame in {self.blamed}{speed}{unrun}"


def score(outcomes: Iterable[Outcome]) -> Score:
    """Return the score of a suite. Outcomes that were not run count only in `unrun`."""
    all_rows = list(outcomes)
    rows = [row for row in all_rows if not row.unrun]
    hangs, controls = [row for row in rows if not row.hang.control], [row for row in rows if row.hang.control]
    times = sorted(row.seconds for row in hangs if row.seconds is not None and row.detected and not row.hang.dumps)
    return Score(
        hangs=len(hangs),
        controls=len(controls),
        detected=sum(row.detected for row in hangs),
        kinds=sum(row.kind_right for row in hangs),
        culprits=sum(row.culprits_right for row in hangs),
        controls_right=sum(row.right for row in controls),
        blamed=sum(bool(row.blamed) for row in rows),
        slowest_s=times[-1] if times else None,
        median_s=times[len(times) // 2] if times else None,
        wrong=tuple(row.hang.name for row in rows if not row.right),
        unrun=len(all_rows) - len(rows),
    )


def judged(
    hang: Hang,
    verdict: Verdict | None,
    *,
    seconds: float | None = None,
    wall_s: float = 0.0,
    evidence: str = "",
    error: str = "",
) -> Outcome:
    """Compare a verdict with the truth. `evidence`: the directory that describes the processes."""
    triage = verdict.triage if verdict else None
    if triage is None or verdict is None:
        return Outcome(hang, verdict, seconds, wall_s, error=error)
    processes = _evidence(evidence)
    named: set[Party] = set()
    blamed = []
    culprits = triage.culprits if verdict.verdict == "HUNG" else []
    for party in culprits:
        words = called(party.key, processes) | {party.role.lower(), party.engine.lower()}
        words |= {party.rank} if party.rank is not None else set()
        hit = {culprit for culprit in hang.culprits if _is_named(culprit, words)}
        named |= hit
        if not hit:
            blamed.append(f"{party.key} ({_short(party.rank, party.role)})")
    round_ = [called(key, processes) for key in triage.cycle]
    circled = frozenset(member for member in hang.cycle if any(_is_named(member, words) for words in round_))
    frames = tuple(party.frame for party in triage.culprits)
    return Outcome(
        hang=hang,
        verdict=verdict,
        seconds=seconds,
        wall_s=wall_s,
        named=frozenset(named),
        blamed=tuple(blamed),
        circled=circled,
        frames=frames,
        error=error,
    )


def called(key: str, processes: dict[str, Process]) -> set[Party]:
    """Return all names by which the truth may refer to a node: its rank, role, engine, title, or a word of its
    command.
    """
    if key.startswith("rank ") and key[5:].isdigit():
        return {int(key[5:])}
    process = processes.get(key)
    if process is None:
        return set()
    words = {process.role, process.engine, *process.command.split(), *process.title.replace("::", " ").split()}
    names: set[Party] = {word.lower() for word in words if word}
    return names | ({process.rank} if process.rank is not None else set())


def _is_named(expected: Party, words: set[Party]) -> bool:
    if isinstance(expected, int):
        return expected in words
    name = expected.lower()
    return any(isinstance(word, str) and (word == name or word.startswith(name + ".")) for word in words)


def _short(rank: int | None, role: str) -> str:
    return f"rank {rank}" if rank is not None else role or "no role"


def _evidence(path: str) -> dict[str, Process]:
    if not path:
        return {}
    evidence: Evidence = directory.read(path)
    return {process.key: process for process in evidence.processes}
