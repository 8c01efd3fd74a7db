"""A bisection on a terminal: its comparisons, what they found, and the answer as the last line."""

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


def show(found: Bisection, console: Console) -> None:
    with Page(console) as page:
        page.heading(f"bisection over {found.over}", f"bad: {clean(found.question)}")
        for number, call, subject, why, took in arrange.rows(found):
            page.prose(
                Text(clean(subject), "bold"), Text.assemble(f"{number:>3}  ", (f"{call:<5}", _STYLES[call])), " " * 10
            )
            page.prose(Text(f"{clean(why)} ({took})", "dim"), " " * 10)
        page.rule()
        for title, lines in arrange.results(found):
            page.line(Text(title, "bold"))
            for line in lines:
                page.prose(clean(line), "  ")
        for note in found.notes:
            page.prose(clean(note), "note: ")
        page.path(clean(found.folder), "recordings: ")
        page.command(clean(found.reproduce), "reproduce: ")
        page.rule()
        page.prose(f"{found.status}: {clean(found.reason)} (exit code {found.exit_code})")
