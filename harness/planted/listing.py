"""The list of planted faults, and the parts of tables that both suites print."""

from __future__ import annotations

import json
from typing import Any

from rich.text import Text

from reports.layout import Page
from reports.text import clean
from scenarios.planted.differences.catalog import Fault
from scenarios.planted.hangs.catalog import Hang

LIST = ("name", "suite", "kind", "expected", "culprits", "summary")


def described(hang: Hang) -> dict[str, Any]:
    """Return one hang as a row of the list."""
    return {
        "name": hang.name, "suite": "hang", "kind": hang.kind, "expected": hang.verdict,
        "culprits": [party(culprit) for culprit in sorted(hang.culprits, key=str)],
        "cycle": [party(member) for member in sorted(hang.cycle, key=str)], "summary": hang.summary,
        "engine": hang.engine, "dumps": hang.dumps is not None, "world": hang.world,
    }  # fmt: skip


def described_parity(fault: Fault) -> dict[str, Any]:
    """Return one parity fault as a row with the same columns. Its causes take the place of a hang's kind."""
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
    cells = [[clean(cell) for cell in row] for row in cells]
    with Page() as page:
        if page.fits(LIST, cells):
            page.table(LIST, cells)
            return
        for name, suite, kind, expected, who, summary in cells:
            page.prose(Text.assemble((name, "bold"), f"  {suite}  {expected}  culprits: {who}"), indent="    ")
            page.prose("; ".join(filter(None, (kind, summary))), "    ", "    ")


def markdown(head: tuple[str, ...], rows: list[list[str]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def _who(row: dict[str, Any]) -> str:
    if row["cycle"]:
        return "nobody; cycle of " + ", ".join(row["cycle"])
    return ", ".join(row["culprits"]) or "nobody"


def _summary(row: dict[str, Any]) -> str:
    if row["engine"]:
        return f"{row['summary']} ({row['engine']}: --engines)"
    return f"{row['summary']} (dumps)" if row["dumps"] else row["summary"]


def party(rank_or_role: int | str) -> str:
    """Return a rank or a role in words."""
    return f"rank {rank_or_role}" if isinstance(rank_or_role, int) else rank_or_role


def rounded(seconds: float | None) -> str:
    """Return the text of seconds in a cell."""
    return "-" if seconds is None else f"{seconds:.1f}"


def yes(value: bool) -> str:
    """Return the text of a boolean in a cell."""
    return "yes" if value else "no"
