"""The tables of `harness env`: environments, and the checks of one."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from harness.envs import Check, Environment
from reports.pipe import outlive_reader

_COLOURS = {"ok": "green", "failed": "bold red", "not run": "yellow"}


def _console() -> Console:
    """A terminal's own width; wide elsewhere, so that paths in a log or a pipe stay in one piece."""
    return Console() if sys.stdout.isatty() else Console(width=240)


def print_environments(environments: list[Environment], console: Console | None = None) -> None:
    """One row an environment; how to get one when there is none."""
    console = console or _console()
    if not environments:
        console.print(
            "No environments yet. They are made on first use, or now by: harness env create vllm", soft_wrap=True
        )
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("name", "engine", "version", "python", "device", "owned", "path"):
        table.add_column(column, no_wrap=column != "path", overflow="fold")
    for e in environments:
        owned = "yes" if e.owned else "no"
        table.add_row(*map(escape, (e.name, e.engine, e.version, e.python_version, e.device, owned, e.python)))
    with outlive_reader(console):
        console.print(table)


def print_checks(environment: Environment, checks: list[Check], console: Console | None = None) -> None:
    """One row a check, and below a failed one the command that fixes it."""
    console = console or _console()
    title = f"[bold]{escape(environment.name)}[/]  {escape(environment.python)}"
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for item in checks:
        fix = f"\n[dim]fix:[/] {escape(item.fix)}" if item.fix else ""
        table.add_row(item.name, f"[{_COLOURS[item.outcome]}]{item.outcome}[/]", escape(item.found) + fix)
    with outlive_reader(console):
        console.print(title, soft_wrap=True, highlight=False)
        console.print(table)
