"""The output of `harness faults run --suite hang`: a line per outcome and the score, also as JSON and Markdown."""

from __future__ import annotations

from typing import Any

from rich.markup import escape

from harness.planted.hangs.hang_outcome import Outcome, Score
from harness.planted.listing import markdown, party, rounded, yes
from reports.console import terminal_console
from reports.pipe import outlive_reader


def print_outcome(outcome: Outcome) -> None:
    """Print one line as soon as the outcome is known, with what was wrong below it."""
    console, hang = terminal_console(), outcome.hang
    if outcome.unrun:
        with outlive_reader(console):
            console.print(f"[yellow]-     [/]{escape(hang.name):22} not run: {escape(outcome.unrun)}", soft_wrap=True)
        return
    colour = "green" if outcome.right else "bold red"
    cells = [
        f"[{colour}]{'ok' if outcome.right else 'WRONG':6}[/]{escape(hang.name):22}",
        f"{hang.kind or '-':4}",
        f"detected {yes(outcome.detected):4}" if not hang.control else f"{outcome.status:13}",
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
    if not (outcome.detected and outcome.kind_right):
        expected = f"expected {hang.verdict} {hang.kind}".strip()
        because = f" because of {hang.reason!r}" if hang.reason else ""
        lines.append(f"{expected}{because}, said {outcome.status} {outcome.named_kind}".rstrip())
    missed = [party(culprit) for culprit in sorted(hang.culprits - outcome.named, key=str)]
    if missed:
        lines.append(f"not named: {', '.join(missed)}")
    uncircled = [party(member) for member in sorted(hang.cycle - outcome.circled, key=str)]
    if uncircled:
        lines.append(f"not in the cycle: {', '.join(uncircled)}")
    if verdict:
        lines.append(f"its reason: {verdict.reason}")
    return lines


def as_json(outcomes: list[Outcome], score: Score, stall_s: float) -> dict[str, Any]:
    """Return the whole run of a suite as one object."""
    return {
        "suite": "hang", "stall_s": stall_s, "outcomes": [row.to_dict() for row in outcomes],
        "score": {
            "hangs": score.hangs, "detected": score.detected, "kind_right": score.kinds,
            "culprits_right": score.culprits, "controls": score.controls, "controls_right": score.controls_right,
            "false_blame": score.blamed, "not_run": score.unrun, "median_seconds": score.median_s,
            "slowest_seconds": score.slowest_s,
            "wrong": list(score.wrong), "line": score.line,
        },
    }  # fmt: skip


def as_markdown(outcomes: list[Outcome], score: Score) -> str:
    """Return a table for a report."""
    head = ("fault", "kind", "verdict", "detected", "seconds to verdict", "kind right", "culprit right", "false blame")
    rows = [
        [
            row.hang.name, row.hang.kind or "-", f"not run: {row.unrun}" if row.unrun else row.status,
            yes(row.detected), rounded(row.seconds),
            yes(row.kind_right), yes(row.culprits_right), ", ".join(row.blamed) or "none",
        ]
        for row in outcomes
    ]  # fmt: skip
    return f"{markdown(head, rows)}\n{score.line}\n"
