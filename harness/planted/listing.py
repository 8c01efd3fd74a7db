"""The list of planted faults, and the parts of a table that both suites print."""

from __future__ import annotations

import json
import sys
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from reports.pipe import outlive_reader
from scenarios.planted.differences.catalog import Fault
from scenarios.planted.hangs.catalog import Hang

NARROW = 160  # columns of a terminal below which a table leaves no room for what a fault is
LIST = ("name", "suite", "kind", "expected", "culprits", "summary")


def wide_console() -> Console:
    """The terminal, or wide lines where the output goes elsewhere."""
    return Console() if sys.stdout.isatty() else Console(width=200)


def described(hang: Hang) -> dict[str, Any]:
    """One hang as the list shows it."""
    return {
        "name": hang.name, "suite": "hang", "kind": hang.kind, "expected": hang.verdict,
        "culprits": [party(one) for one in sorted(hang.culprits, key=str)],
        "cycle": [party(one) for one in sorted(hang.cycle, key=str)], "summary": hang.summary,
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
    console = wide_console()
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


def party(one: int | str) -> str:
    """A rank or a role in words."""
    return f"rank {one}" if isinstance(one, int) else one


def yes(value: bool) -> str:
    """For a cell."""
    return "yes" if value else "no"
