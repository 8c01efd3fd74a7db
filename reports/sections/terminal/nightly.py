"""A night on a terminal: the cells that changed, between the answer as first and as last line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from reports.layout import Page
from reports.nightly_model import Night
from reports.sections import nightly as arrange
from reports.text import clean

if TYPE_CHECKING:
    from rich.console import Console

_STYLES = {"bad": "bold red", "warn": "bold yellow", "ok": "bold green", "known": "bold cyan"}


def show(night: Night, console: Console, *, verbose: bool) -> None:
    """Print a night. `verbose`: also the unchanged cells."""
    answer = f"{night.reason} (exit code {night.exit_code})"
    with Page(console) as page:
        page.line(answer)
        page.heading("Night", f"{night.number} of {clean(night.matrix)}, {clean(night.started)}")
        results = list(night.results) if verbose else arrange.noteworthy(night)
        for result in results:
            style = _STYLES[arrange.tone(result.status, bool(result.new))]
            seconds = arrange.duration(float(result.seconds))
            page.prose(
                Text.assemble(
                    (f"{result.status}  ", style), (clean(result.cell), "bold"), f"  {result.verdict}, {seconds}"
                )
            )
            for line in arrange.lines(result):
                page.prose(clean(line), "    ")
        for name, why in night.left_out:
            page.prose(Text(f"not run  {clean(name)}: {clean(why)}", "dim"))
        page.rule()
        page.line(answer)
