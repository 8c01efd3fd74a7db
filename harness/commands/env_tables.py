"""The tables of `harness env`: environments, and the checks of one."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from harness.envs import Check, Environment
from reports.layout import Page
from reports.text import clean

_COLOURS = {"ok": "green", "failed": "bold red", "not run": "yellow"}
_HEAD = ("name", "engine", "version", "python", "device", "owned", "path")


def print_environments(environments: list[Environment], console: Console | None = None) -> None:
    """One row an environment; how to get one when there is none."""
    with Page(console) as page:
        if not environments:
            page.prose("No environments yet. They are made on first use, or now by: harness env create vllm")
            return
        rows = []
        for e in environments:
            owned = "yes" if e.owned else "no"
            values = (
                e.name,
                e.engine,
                e.version,
                e.python_version,
                e.device,
                owned,
                e.python if e.exists else f"{e.python} (gone)",
            )
            rows.append([clean(value) for value in values])
        page.table(_HEAD, rows)


def print_checks(environment: Environment, checks: list[Check], console: Console | None = None) -> None:
    """One line a check, and below a failed one the command that fixes it."""
    width = max((len(item.name) for item in checks), default=0)
    with Page(console) as page:
        page.path(clean(environment.python), Text(f"{clean(environment.name)}  ", "bold"))
        for item in checks:
            lead = Text.assemble(f"{item.name:{width}}  ", (f"{item.outcome:7}  ", _COLOURS[item.outcome]))
            page.prose(clean(item.found), lead, "    ")
            if item.fix:
                page.command(clean(item.fix), Text("    fix: ", "dim"))
