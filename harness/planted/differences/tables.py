"""What `harness faults run --suite parity` prints: a line an outcome, the score; also JSON and Markdown."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from harness.planted.differences.outcome import Outcome, Score, score
from harness.planted.listing import markdown, yes
from reports.pipe import outlive_reader
from reports.text import counted
from scenarios.planted.differences.catalog import Fault, family

HEAD = ("fault", "engines", "expected", "verdict", "causes named", "right", "seconds", "engine starts", "to the cause")
FAMILY = (
    "family", "found", "named", "controls right", "false alarms", "seconds a fault, median", "at most",
    "at most without engine starts", "to the cause, median",
)  # fmt: skip


def print_outcome(one: Outcome, *, aside: bool = False) -> None:
    """One line as soon as it is known, and what was wrong below it; `aside`: on the standard error."""
    console = Console(stderr=aside)
    colour = "green" if one.right else "bold red"
    causes = ", ".join(f"{c.name} ({c.party})" for c in one.causes) or "-"
    with outlive_reader(console):
        console.print(
            f"[{colour}]{'ok' if one.right else 'WRONG':6}[/]{escape(one.fault.name):30} {one.said:13} "
            f"{one.seconds:5.1f} s  {escape(causes)}{_starts(one)}",
            soft_wrap=True,
            highlight=False,
        )
        for line in _wrong(one) if not one.right else ():
            console.print(f"      [dim]{escape(line)}[/]", soft_wrap=True, highlight=False)


def _starts(one: Outcome) -> str:
    return f"  (of it {one.starts[1]:.1f} s to start engines)" if one.starts[0] else ""


def _wrong(one: Outcome) -> list[str]:
    if one.error:
        return [one.error]
    lines = []
    if not one.found:
        also = f" with {', '.join(one.fault.findings)}" if one.fault.findings else ""
        lines.append(f"expected {one.fault.expected}{also}, said {one.said}")
    if one.untold:
        lines.append(f"not told of {'; '.join(one.untold)}")
    if one.missing:
        lines.append(f"not named: {', '.join(one.missing)}")
    if one.wrong:
        lines.append(f"named and wrong: {', '.join(one.wrong)}")
    if one.verdict:
        lines.append(f"its reason: {one.verdict.reason}")
    return lines


def summary(rows: Sequence[Outcome], score: Score, asked: Sequence[Fault], hidden: Sequence[str] = ()) -> str:
    """The last lines: the score, and what was left out because it needs other engines, or a dtype that rounds less."""
    left_out = len(asked) - len(rows)
    note = f"not run, for other engines: {counted(left_out, 'fault')}\n" if left_out else ""
    note += f"not run, no fault that can be told from rounding in this dtype: {', '.join(hidden)}\n" if hidden else ""
    return note + score.line


def as_json(rows: Sequence[Outcome], score: Score) -> dict[str, Any]:
    """The whole run of the suite as one object."""
    return {
        "suite": "parity", "outcomes": [one.to_dict() for one in rows],
        "score": vars(score) | {"passed": score.passed, "line": score.line},
    }  # fmt: skip


def as_markdown(rows: Sequence[Outcome], score: Score) -> str:
    """Two tables for a report, by family and by fault, and the score."""
    cells = [
        [
            one.fault.name, " ".join(one.pair), one.fault.expected, one.said,
            ", ".join(f"{c.name} ({c.party})" for c in one.causes) or "-", yes(one.right), f"{one.seconds:.1f}",
            f"{one.starts[1]:.1f}" if one.starts[0] else "-",
            f"{one.to_cause_s:.1f}" if one.to_cause_s is not None else "-",
        ]
        for one in rows
    ]  # fmt: skip
    return f"{families(rows)}\n{markdown(HEAD, cells)}\n{score.line}\n"


def keep(rows: Sequence[Outcome], folder: Path) -> None:
    """What is known so far as suite.json and suite.md in `folder`: a suite that is cut short loses nothing."""
    result = score(rows)
    (folder / "suite.json").write_text(json.dumps(as_json(rows, result), indent=2), encoding="utf-8")
    (folder / "suite.md").write_text(as_markdown(rows, result), encoding="utf-8")


def families(rows: Sequence[Outcome]) -> str:
    """A Markdown table of the score of each family, and of all."""
    by: dict[str, list[Outcome]] = {}
    for one in rows:
        by.setdefault(family(one.fault), []).append(one)
    lines = [_family(name, score(some)) for name, some in by.items()]
    return markdown(FAMILY, [*lines, _family("all", score(rows))])


def _family(name: str, s: Score) -> list[str]:
    def seconds(value: float | None) -> str:
        return "-" if value is None else f"{value:.1f}"

    def of(part: int, whole: int) -> str:
        return f"{part} of {whole}" if whole else "-"

    return [
        name, of(s.found, s.faults), of(s.named, s.causes), of(s.quiet, s.controls), str(len(s.alarms)),
        seconds(s.median_s), seconds(s.slowest_s), seconds(s.slowest_warm_s), seconds(s.median_to_cause_s),
    ]  # fmt: skip
