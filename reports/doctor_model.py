"""The result of `harness doctor`: plain frozen data. A check fails, passes, or was not made, and is named
either way.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from probes import redaction
from reports import codec
from reports.codec import Number
from reports.model import STRICT
from reports.text import agreeing, counted

SCHEMA_VERSION = 1  # of the doctor's JSON
Severity = Literal["error", "warning", "unknown", "info"]
VERDICTS = {  # of one examination, and of a comparison of two commands
    "READY": "Nothing was found that will break a run. What was not checked is listed, and is no pass.",
    "MAY FAIL": "Something will break a run under a condition, which is listed with it. Exit code 0; 1 with --strict.",
    "WILL FAIL": "Something will break a run. Exit code 1.",
    "SAME": "No setting was found that makes the two commands other runs. Exit code 0; with --strict "
    f"{STRICT} if something was not compared.",
    "MAY DIFFER": "A setting differs that may make the two commands other runs, or of which nobody knows here what it "
    "changes. Exit code 0; 1 with --strict.",
    "DIFFERENT": "A setting differs that makes the two commands other runs. Exit code 1.",
}
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "unknown", "info")


@dataclass(frozen=True)
class Hazard:
    """Something that will break a run.

    `severity`: error: it will; warning: it will under a condition that `why` names; info: good to know. Of a difference
    between two commands: it makes them other runs, it may, it is not known what it changes, it changes no result.
    """

    check: str
    severity: Severity
    what: str  # one sentence, without the measured value, so that equal hazards of several nodes become one
    where: tuple[str, ...]  # this shell, worker on <node>, ...
    measured: str
    why: str  # what it does to an RLHF run
    fix: str = ""  # a command line, or a short instruction

    @property
    def breaks_one_command(self) -> bool:
        """Whether it breaks one of two commands that were compared."""
        return self.severity == "error" and len(self.where) == 1 and self.where[0].startswith("command ")


@dataclass(frozen=True)
class Passed:
    """A check that found nothing wrong, with what it measured."""

    check: str
    where: tuple[str, ...]
    measured: str


@dataclass(frozen=True)
class Unchecked:
    """A check that could not be made. That is not a pass."""

    check: str
    where: tuple[str, ...]
    reason: str
    fix: str = ""  # how to have it checked


@dataclass(frozen=True)
class Report:
    """The result of one examination, the worst first. `exit_code`: 1 for an error; strict: also for a warning,
    and 3 for two commands of which something was not compared."""

    kind: ClassVar[str] = "doctor"
    hazards: tuple[Hazard, ...]
    passed: tuple[Passed, ...]
    unchecked: tuple[Unchecked, ...]
    places: tuple[str, ...]  # where facts were gathered
    seconds: Number
    strict: bool = False
    reproduce: str = ""
    compared: bool = False  # two commands were compared with each other
    schema_version: int = SCHEMA_VERSION

    @property
    def failing(self) -> tuple[Severity, ...]:
        """The severities that end in exit code 1."""
        return ("error", "warning", "unknown") if self.strict else ("error",)

    @property
    def exit_code(self) -> int:
        if any(item.severity in self.failing for item in self.hazards):
            return 1
        return STRICT if self.strict and self.compared and self.unchecked else 0

    @property
    def verdict(self) -> str:
        """Return the worst result: READY, MAY FAIL or WILL FAIL; for two commands SAME, MAY DIFFER or DIFFERENT."""
        worst = next((name for name in SEVERITIES if any(item.severity == name for item in self.hazards)), "info")
        if self.compared:
            return {"error": "DIFFERENT", "info": "SAME"}.get(worst, "MAY DIFFER")
        return {"error": "WILL FAIL", "warning": "MAY FAIL"}.get(worst, "READY")

    @property
    def reason(self) -> str:
        """Return one sentence for the last line."""
        if self.compared:
            return self._differences()
        counts = {name: sum(item.severity == name for item in self.hazards) for name in SEVERITIES}
        plural = {"error": "errors", "warning": "warnings"}
        words = [f"{count} {name if count == 1 else plural.get(name, name)}" for name, count in counts.items() if count]
        summary = ", ".join(words) or "nothing found that will break a run"
        made = {item.check for item in self.hazards} | {item.check for item in self.passed}
        unchecked = {item.check for item in self.unchecked}
        return f"{summary}; {counted(len(made), 'check')} made, {len(unchecked):,} not checked"

    def _differences(self) -> str:
        # What breaks one command by itself is no difference between the two.
        of_one = [item for item in self.hazards if item.breaks_one_command]
        between = [item for item in self.hazards if not item.breaks_one_command]
        makes, may, unknown, nothing = (sum(item.severity == name for item in between) for name in SEVERITIES)
        failing = dict.fromkeys(item.where[0] for item in of_one)
        parts = {
            f"{makes} {agreeing(makes, 'setting makes', 'settings make')} them other runs": makes,
            f"{may} may": may,
            f"{unknown} unknown": unknown,
            f"{nothing} {agreeing(nothing, 'does', 'do')} not": nothing,
            f"{len(self.unchecked):,} not compared": len(self.unchecked),
            f"{' and '.join(failing)} will fail": len(failing),
        }
        return ", ".join(part for part, count in parts.items() if count) or "no setting differs"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values without secrets, with the exit code and the reason that follow from them."""
        return {**codec.builtins(redaction.scrub(self)), "exit_code": self.exit_code, "reason": self.reason}

    def to_json(self) -> str:
        return codec.dumps(self.to_dict())

    @staticmethod
    def from_dict(data: dict[str, Any]) -> Report:
        """Rebuild a report. Raises ValueError, one sentence, on another schema version or anything that does
        not fit.
        """
        derived = ("exit_code", "reason")
        plain = {key: value for key, value in data.items() if key not in derived}
        return codec.convert(plain, Report, version=SCHEMA_VERSION)


def merged(items: Iterable[Any]) -> list[Any]:
    """Merge items of the same content from several places, in order of first appearance.

    Measured values that differ are joined, the first three of them.
    """
    groups: dict[Any, list[Any]] = {}
    for item in items:
        values = {key: value for key, value in dataclasses.asdict(item).items() if key not in ("where", "measured")}
        groups.setdefault((type(item), *values.values()), []).append(item)
    merged_items = []
    for group in groups.values():
        where = tuple(dict.fromkeys(place for item in group for place in item.where))
        more: dict[str, Any] = {"where": where}
        if hasattr(group[0], "measured"):
            measured = list(dict.fromkeys(item.measured for item in group))
            suffix = f" (and {len(measured) - 3} other values)" if len(measured) > 3 else ""
            more["measured"] = " | ".join(measured[:3]) + suffix
        merged_items.append(dataclasses.replace(group[0], **more))
    return merged_items
