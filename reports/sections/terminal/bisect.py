"""A bisection on a terminal: its comparisons and what they found, between the answer as first and as last line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from reports.bisect_model import Bisection
from reports.layout import Page
from reports.sections import bisect as arrange
from reports.text import clean

if TYPE_CHECKING:
    from rich.console import Console

_STYLES = {"good": "green", "bad": "red", "skip": "yellow"}


def show(bisection: Bisection, console: Console) -> None:
    answer = f"{bisection.status}: {clean(bisection.reason)} (exit code {bisection.exit_code})"
    with Page(console) as page:
        page.prose(answer)
        page.heading("Bisection", f"over {bisection.over}; bad: {clean(bisection.question)}")
        for number, call, subject, why, took in arrange.rows(bisection):
            page.prose(
                Text(clean(subject), "bold"), Text.assemble(f"{number:>3}  ", (f"{call:<5}", _STYLES[call])), " " * 10
            )
            page.prose(Text(f"{clean(why)} ({took})", "dim"), " " * 10)
        page.rule()
        for title, lines in arrange.results(bisection):
            page.line(Text(title, "bold"))
            for line in lines:
                page.prose(clean(line), "  ")
        for note in bisection.notes:
            page.prose(clean(note), "note: ")
        page.path(clean(bisection.folder), "recordings: ")
        page.command(clean(bisection.reproduce), "reproduce: ")
        page.rule()
        page.prose(answer)
