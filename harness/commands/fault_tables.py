"""What `harness faults` prints: the list of faults, one line an outcome, and the same as JSON and Markdown."""

from __future__ import annotations

import json
import sys
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from harness.triage.lab_outcome import Outcome, Score
from reports.pipe import outlive_reader
from scenarios.planted.differences.catalog import Fault
from scenarios.planted.hangs.catalog import Hang

NARROW = 160  # columns of a terminal below which a table leaves no room for what a fault is
LIST = ("name", "suite", "kind", "expected", "culprits", "summary")


def _console() -> Console:
    return Console() if sys.stdout.isatty() else Console(width=200)


def described(hang: Hang) -> dict[str, Any]:
    """One hang as the list shows it."""
    return {
        "name": hang.name, "suite": "hang", "kind": hang.kind, "expected": hang.verdict,
        "culprits": [_party(one) for one in sorted(hang.culprits, key=str)],
        "cycle": [_party(one) for one in sorted(hang.cycle, key=str)], "summary": hang.summary,
        "engine": hang.engine, "dumps": hang.dumps is not None, "world": hang.world,
    }  # fmt: skip


def described_parity(fault: Fault) -> dict[str, Any]:
    """One fault of parity in the same columns: its causes stand where a hang has its kind."""
    engines = f" (needs {' and '.join(fault.pair)})" if fault.pair else ""
    return {
        "name": fault.name, "suite": "parity", "kind": ", ".join(fault.causes), "expected": fault.expected,
        "culprits": sorted(set(fault.parties)), "cycle": [], "summary": fault.summary + engines, "engine": "",
        "dumps": False, "world": 0, "side": fault.side,
    }  # fmt: skip


def show_list(rows: list[dict[str, Any]], format: str) -> None:
    """Print the list."""
    if format == "json":
        print(json.dumps(rows, indent=2))
        return
    cells = [[*(str(row[key]) for key in LIST[:4]), _who(row), _summary(row)] for row in rows]
    if format == "md":
        print(markdown(LIST, cells), end="")
        return
    console = _console()
    if console.width < NARROW:
        with outlive_reader(console):
            for name, suite, kind, expected, _, summary in cells:
                console.print(f"[bold]{escape(name)}[/]  {suite}  {escape(expected)}", soft_wrap=True, highlight=False)
                console.print(Padding(escape("; ".join(filter(None, (kind, summary)))), (0, 0, 0, 4)), highlight=False)
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in LIST:
        table.add_column(column, no_wrap=column != "summary", overflow="fold")
    for row in cells:
        table.add_row(*map(escape, row))
    with outlive_reader(console):
        console.print(table)


def print_outcome(outcome: Outcome) -> None:
    """One line as soon as it is known, and what was wrong below it."""
    console, hang = _console(), outcome.hang
    colour = "green" if outcome.right else "bold red"
    cells = [
        f"[{colour}]{'ok' if outcome.right else 'WRONG':6}[/]{escape(hang.name):22}",
        f"{hang.kind or '-':4}",
        f"detected {yes(outcome.detected):4}" if not hang.control else f"{outcome.said:13}",
        f"{outcome.seconds:5.1f} s " if outcome.seconds is not None else "      - ",
        f"kind {yes(outcome.kind_right):4}",
        f"culprit {yes(outcome.culprits_right):4}",
        f"false blame {', '.join(map(escape, outcome.blamed)) or 'none'}",
    ]
    with outlive_reader(console):
        console.print(" ".join(cells), soft_wrap=True, highlight=False)
        if not outcome.right:
            for line in _wrong(outcome):
                console.print(f"      [dim]{escape(line)}[/]", soft_wrap=True, highlight=False)


def _wrong(outcome: Outcome) -> list[str]:
    hang, verdict = outcome.hang, outcome.verdict
    if outcome.error:
        return [outcome.error]
    lines = []
    kind = verdict.triage.hang if verdict and verdict.triage else ""
    if not (outcome.detected and outcome.kind_right):
        lines.append(f"expected {hang.verdict} {hang.kind}".strip() + f", said {outcome.said} {kind}".rstrip())
    missed = [_party(one) for one in sorted(hang.culprits - outcome.named, key=str)]
    if missed:
        lines.append(f"not named: {', '.join(missed)}")
    uncircled = [_party(one) for one in sorted(hang.cycle - outcome.circled, key=str)]
    if uncircled:
        lines.append(f"not in the cycle: {', '.join(uncircled)}")
    if verdict:
        lines.append(f"its reason: {verdict.reason}")
    return lines


def as_json(outcomes: list[Outcome], score: Score, stall_s: float) -> dict[str, Any]:
    """The whole run of a suite as one object."""
    return {
        "suite": "hang", "stall_s": stall_s, "outcomes": [one.to_dict() for one in outcomes],
        "score": {
            "hangs": score.hangs, "detected": score.detected, "kind_right": score.kinds,
            "culprits_right": score.culprits, "controls": score.controls, "controls_right": score.controls_right,
            "false_blame": score.blamed, "median_seconds": score.median_s, "slowest_seconds": score.slowest_s,
            "wrong": list(score.wrong), "line": score.line,
        },
    }  # fmt: skip


def as_markdown(outcomes: list[Outcome], score: Score) -> str:
    """A table for a report."""
    head = ("fault", "kind", "verdict", "detected", "seconds to verdict", "kind right", "culprit right", "false blame")
    rows = [
        [
            one.hang.name, one.hang.kind or "-", one.said, yes(one.detected),
            f"{one.seconds:.1f}" if one.seconds is not None else "-", yes(one.kind_right),
            yes(one.culprits_right), ", ".join(one.blamed) or "none",
        ]
        for one in outcomes
    ]  # fmt: skip
    return f"{markdown(head, rows)}\n{score.line}\n"


def markdown(head: tuple[str, ...], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def _who(row: dict[str, Any]) -> str:
    if row["cycle"]:
        return "nobody; cycle of " + ", ".join(row["cycle"])
    return ", ".join(row["culprits"]) or "nobody"


def _summary(row: dict[str, Any]) -> str:
    extra = f" ({row['engine']}: --engines)" if row["engine"] else " (dumps)" if row["dumps"] else ""
    return row["summary"] + extra


def _party(one: int | str) -> str:
    return f"rank {one}" if isinstance(one, int) else one


def yes(value: bool) -> str:
    """For a cell."""
    return "yes" if value else "no"
