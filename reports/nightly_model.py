"""The result of a night of cells: plain frozen data, as `harness nightly` and `harness history` print it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from reports import codec
from reports.codec import Number

Kind = Literal["verdict", "cause", "metric", "fewer", "slower", "finding", "known", "moved", "setting"]
Status = Literal["OK", "NEW", "REGRESSED", "FLAKY", "FIXED", "STILL FAILING", "KNOWN", "COULD NOT RUN"]
STATUSES: dict[Status, str] = {  # of a cell, the most important first
    "REGRESSED": "A cell has a problem that the night before had not, and a second run showed it too.",
    "COULD NOT RUN": "A cell has no verdict: it died, was ended at its limit, or was refused.",
    "NEW": "It is the first night of the cell; with a problem it fails.",
    "FLAKY": "A cell had a problem that a second run did not show.",
    "FIXED": "The problems of the night before are gone, in a second run too.",
    "STILL FAILING": "A cell has the problems of the night before, and no other.",
    "KNOWN": "Every problem of the cell is on the list of known differences.",
    "OK": "The cell has no problem.",
}
SUITE_VERDICTS = {  # of a suite, and in the row of a fault
    "PASSED": "The suite of planted faults found what it has to find, and blamed no control.",
    "FAILED": "The suite of planted faults missed a fault that it has to find, or blamed a control.",
    "WRONG": "The answer about a planted fault or a control is another than the expected one.",
    "NOT RUN": "This machine lacks something that the planted fault needs. That is no pass.",
}

LABELS = {  # metrics whose names need a label
    "max_delta_logprob": "max |Δ logprob|", "k1": "mean Δ logprob", "compared_tokens": "tokens compared",
    "native_samples": "native samples",
}  # fmt: skip
CHANGED: tuple[Status, ...] = ("REGRESSED", "FLAKY", "FIXED", "NEW", "COULD NOT RUN")


_TO_READ = {"ERROR": "log.txt", "PASSED": "suite.md", "FAILED": "suite.md"}  # by verdict; the last two are a suite's


def to_read(recording: str, verdict: str) -> str:
    """Return the file that shows what a cell did.

    It is the report of its verdict, the table of a suite of planted faults, or the log where there is no verdict.
    """
    return str(Path(recording) / _TO_READ.get(verdict, "report.html")) if recording else ""


@dataclass(frozen=True)
class Change:
    """One thing that differs from earlier nights.

    `kind` and `subject` decide whether two nights show the same change; the text may vary. Kinds `moved` and
    `setting` explain: a package or a parameter differs from the last night. The other kinds are problems.
    """

    kind: Kind
    subject: str
    text: str

    @property
    def key(self) -> tuple[str, str]:
        return self.kind, self.subject


@dataclass(frozen=True)
class CellResult:
    """The result of one cell, and how it differs from earlier nights.

    `confirmation`: what a second run and the baseline against itself showed.
    """

    cell: str
    status: Status
    verdict: str
    reason: str
    seconds: Number = 0.0
    new: tuple[Change, ...] = ()
    standing: tuple[Change, ...] = ()
    gone: tuple[Change, ...] = ()
    explains: tuple[Change, ...] = ()
    known: tuple[str, ...] = ()
    confirmation: str = ""
    report: str = ""
    reproduce: str = ""
    metrics: dict[str, Any] = field(default_factory=dict)


NAMED = 4  # most statuses in a first line; more would exceed `reports.headline.MOST` words


@dataclass(frozen=True)
class Night:
    """All cells of a night. `left_out`: cells that did not run, with the reason."""

    kind: ClassVar[str] = "nightly"
    number: int
    matrix: str
    started: str
    results: tuple[CellResult, ...]
    left_out: tuple[tuple[str, str], ...] = ()
    finished: bool = True

    @property
    def alarms(self) -> tuple[CellResult, ...]:
        """Return the results that need attention: cells that regressed or could not run, and new ones with a
        problem.
        """
        return tuple(result for result in self.results if result.status in ("REGRESSED", "COULD NOT RUN")
                     or (result.status == "NEW" and result.new))  # fmt: skip

    @property
    def exit_code(self) -> int:
        """Return 1 where a cell regressed, or a new one does not pass; else 2 where a cell could not run, or none
        ran; else 0.
        """
        if any(result.status != "COULD NOT RUN" for result in self.alarms):
            return 1
        return 2 if self.alarms or not self.results else 0

    @property
    def counts(self) -> dict[str, int]:
        """Return how many cells have each status, the most important status first."""
        statuses = [result.status for result in self.results]
        return {status: statuses.count(status) for status in STATUSES if status in statuses}

    @property
    def reason(self) -> str:
        """Return one sentence: the gravest statuses by name, and a count of the other cells."""
        statuses = list(self.counts.items())
        named, unnamed_cells = statuses[:NAMED], sum(count for _, count in statuses[NAMED:])
        counts = ", ".join(f"{count} {status}" for status, count in named) or "no cell ran"
        counts += f", {unnamed_cells} others" if unnamed_cells else ""
        cut = "" if self.finished else "; the night was cut"
        return counts + (f"; {len(self.left_out):,} not run" if self.left_out else "") + cut

    def to_json(self) -> str:
        values = codec.builtins(self)
        return codec.dumps(values | {"exit_code": self.exit_code, "reason": self.reason})


@dataclass(frozen=True)
class NightRow:
    """A night in a list of nights. `cells`: how many had each status."""

    number: int
    started: str
    finished: bool
    matrix: str
    machine: str
    cells: dict[str, int]


@dataclass(frozen=True)
class CellDifference:
    """A cell that differs between two nights: its verdict and causes, or "not run"."""

    cell: str
    first: str
    second: str


@dataclass(frozen=True)
class Measured:
    night: int
    value: Number | None  # None: not measured in that night


@dataclass(frozen=True)
class Course:
    """A metric of a cell over its nights, the oldest first."""

    cell: str
    metric: str
    values: list[Measured]
