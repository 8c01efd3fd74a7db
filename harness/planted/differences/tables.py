"""The output of `harness faults run --suite parity`: a line per outcome and the score, also as JSON and Markdown."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.markup import escape

from harness.planted.differences.outcome import Outcome, Score, score
from harness.planted.listing import markdown, rounded, yes
from probes.files import write_whole
from reports.console import terminal_console
from reports.pipe import outlive_reader
from reports.text import counted
from scenarios.planted.differences.catalog import Fault, family

HEAD = ("fault", "engines", "expected", "verdict", "causes named", "right", "seconds", "engine starts", "to the cause")
FAMILY = (
    "family", "found", "named", "controls right", "false alarms", "seconds a fault, median", "at most",
    "at most without engine starts", "to the cause, median",
)  # fmt: skip


def print_outcome(outcome: Outcome, *, aside: bool = False) -> None:
    """Print one line as soon as the outcome is known, with what was wrong below it. `aside`: to standard error."""
    console = terminal_console(stderr=aside)
    colour = "green" if outcome.right else "bold red"
    with outlive_reader(console):
        console.print(
            f"[{colour}]{'ok' if outcome.right else 'WRONG':6}[/]{escape(outcome.fault.label):30} {outcome.status:13} "
            f"{outcome.seconds:5.1f} s  {escape(_causes(outcome))}{_starts(outcome)}",
            soft_wrap=True,
            highlight=False,
        )
        for line in _wrong(outcome) if not outcome.right else ():
            console.print(f"      [dim]{escape(line)}[/]", soft_wrap=True, highlight=False)


def _causes(outcome: Outcome) -> str:
    return ", ".join(f"{cause.name} ({cause.party})" for cause in outcome.causes) or "-"


def _starts(outcome: Outcome) -> str:
    return f"  (of it {outcome.starts[1]:.1f} s to start engines)" if outcome.starts[0] else ""


def _wrong(outcome: Outcome) -> list[str]:
    if outcome.error:
        return [outcome.error]
    lines = []
    if not outcome.as_expected:
        also = f" with {', '.join(outcome.fault.findings)}" if outcome.fault.findings else ""
        lines.append(f"expected {outcome.fault.expected}{also}, said {outcome.status}")
    if outcome.untold:
        lines.append(f"not told of {'; '.join(outcome.untold)}")
    if outcome.missing:
        lines.append(f"not named: {', '.join(outcome.missing)}")
    if outcome.wrong:
        lines.append(f"named and wrong: {', '.join(outcome.wrong)}")
    if outcome.verdict:
        lines.append(f"its reason: {outcome.verdict.reason}")
    return lines


def summary(rows: Sequence[Outcome], score: Score, asked_faults: Sequence[Fault], hidden: Sequence[str] = ()) -> str:
    """Return the last lines: the score and the faults that were left out.

    Faults are left out because they need other engines, or a dtype that rounds less.
    """
    left_out = len(asked_faults) - len(rows)
    note = f"not run, for other engines: {counted(left_out, 'fault')}\n" if left_out else ""
    note += f"not run, no fault that can be told from rounding in this dtype: {', '.join(hidden)}\n" if hidden else ""
    return note + score.line


def as_json(rows: Sequence[Outcome], score: Score) -> dict[str, Any]:
    """Return the whole run of the suite as one object."""
    return {
        "suite": "parity", "outcomes": [row.to_dict() for row in rows],
        "score": vars(score) | {"passed": score.passed, "line": score.line},
    }  # fmt: skip


def as_markdown(rows: Sequence[Outcome], score: Score) -> str:
    """Return two tables for a report, by family and by fault, and the score."""
    cells = [
        [
            row.fault.label, " ".join(row.pair), row.fault.expected, row.status,
            _causes(row), yes(row.right), rounded(row.seconds),
            rounded(row.starts[1] if row.starts[0] else None), rounded(row.to_cause_s),
        ]
        for row in rows
    ]  # fmt: skip
    return f"{families(rows)}\n{markdown(HEAD, cells)}\n{score.line}\n"


def keep(rows: Sequence[Outcome], folder: Path) -> None:
    """Write the results so far to suite.json and suite.md in `folder`, so that an interrupted suite loses nothing."""
    result = score(rows)
    write_whole(folder / "suite.json", json.dumps(as_json(rows, result), indent=2).encode())
    write_whole(folder / "suite.md", as_markdown(rows, result).encode())


def families(rows: Sequence[Outcome]) -> str:
    """Return a Markdown table with the score of each family, and of all."""
    by: dict[str, list[Outcome]] = {}
    for row in rows:
        by.setdefault(family(row.fault), []).append(row)
    lines = [_family(name, score(family_outcomes)) for name, family_outcomes in by.items()]
    return markdown(FAMILY, [*lines, _family("all", score(rows))])


def _family(name: str, s: Score) -> list[str]:
    def of(part: int, total: int) -> str:
        return f"{part} of {total}" if total else "-"

    return [
        name, of(s.detected, s.faults), of(s.named, s.causes), of(s.quiet, s.controls), str(len(s.alarms)),
        *map(rounded, (s.median_s, s.slowest_s, s.slowest_warm_s, s.median_to_cause_s)),
    ]  # fmt: skip
