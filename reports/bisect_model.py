"""The result of a bisection: plain frozen data, as `harness bisect` prints it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from reports import codec
from reports.codec import Number

Call = Literal["good", "bad", "skip"]
Over = Literal["releases", "settings", "commits"]
Status = Literal["FOUND", "ONE OF THESE", "NOT CONFIRMED", "WRONG END"]
CALLS: dict[Call, str] = {
    "good": "The comparison does not show what is searched for.",
    "bad": "The comparison shows what is searched for.",
    "skip": "The comparison could not be made, or does not tell.",
}
STATUSES: dict[Status, str] = {
    "FOUND": "The first bad release or commit was found, or the settings that make the difference. Exit code 0.",
    "ONE OF THESE": "It is one of those that are listed: the comparisons between them do not tell. Exit code 3.",
    "NOT CONFIRMED": "What was bad was not bad when it was checked once more. Exit code 3.",
    "WRONG END": "The good end is not good, or the bad end is not bad: nothing is to be searched. Exit code 3.",
}


@dataclass(frozen=True)
class Step:
    """One comparison.

    `subject`: the release, the commit, or the settings that were tried. `again`: the comparison repeats an earlier
    one to check it. `environment`: the one that was made for it.
    """

    subject: str
    call: Call
    why: str
    seconds: Number = 0.0
    recording: str = ""
    again: bool = False
    environment: str = ""


@dataclass(frozen=True)
class Bisection:
    """The result of a search.

    `question`: what is bad. `results`: for settings, a row per cause with the settings that it needs; otherwise one
    row with all candidates for the first bad one. `notes`: what limits the result.
    """

    kind: ClassVar[str] = "bisect"
    over: Over
    question: str
    status: Status
    reason: str
    results: tuple[tuple[str, ...], ...] = ()
    last_good: str = ""
    steps: tuple[Step, ...] = ()
    notes: tuple[str, ...] = ()
    folder: str = ""
    reproduce: str = ""

    @property
    def exit_code(self) -> int:
        """Return 0 where it was found, 3 where the comparisons do not tell."""
        return 0 if self.status == "FOUND" else 3

    def to_json(self) -> str:
        return codec.dumps(codec.builtins(self) | {"exit_code": self.exit_code})
