"""What `harness faults run --suite parity` prints: a line an outcome, the score; also JSON and Markdown."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape

from harness.commands.fault_tables import markdown, yes
from harness.parity.suite.outcome import Outcome, Score
from reports.pipe import outlive_reader
from reports.text import counted
from scenarios.faults.fault import Fault

HEAD = ("fault", "engines", "expected", "verdict", "causes named", "right", "seconds", "engine starts", "to the cause")


def print_outcome(one: Outcome, *, aside: bool = False) -> None:
    """One line as soon as it is known, and what was wrong below it; `aside`: on the standard error."""
    width = None if (sys.stderr if aside else sys.stdout).isatty() else 200
    console = Console(width=width, stderr=aside)
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


def summary(rows: Sequence[Outcome], score: Score, asked: Sequence[Fault]) -> str:
    """The last lines: the score, and what was left out because it needs other engines."""
    left_out = len(asked) - len(rows)
    note = f"not run, for other engines: {counted(left_out, 'fault')}\n" if left_out else ""
    return note + score.line


def as_json(rows: Sequence[Outcome], score: Score) -> dict[str, Any]:
    """The whole run of the suite as one object."""
    return {
        "suite": "parity", "outcomes": [one.to_dict() for one in rows],
        "score": vars(score) | {"passed": score.passed, "line": score.line},
    }  # fmt: skip


def as_markdown(rows: Sequence[Outcome], score: Score) -> str:
    """A table for a report."""
    cells = [
        [
            one.fault.name, " ".join(one.pair), one.fault.expected, one.said,
            ", ".join(f"{c.name} ({c.party})" for c in one.causes) or "-", yes(one.right), f"{one.seconds:.1f}",
            f"{one.starts[1]:.1f}" if one.starts[0] else "-",
            f"{one.to_cause_s:.1f}" if one.to_cause_s is not None else "-",
        ]
        for one in rows
    ]  # fmt: skip
    return f"{markdown(HEAD, cells)}\n{score.line}\n"
