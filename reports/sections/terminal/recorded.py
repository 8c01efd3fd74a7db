"""A recorded run on a terminal: the metrics of its steps, then what ran and where its recording is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.text import Text

from reports.layout import Page
from reports.sections import recorded as arrange
from reports.text import clean

if TYPE_CHECKING:
    from rich.console import Console

    from reports.run_model import RecordedRun

_GAP = 3  # a choice: spaces between two columns of a table


def show(run: RecordedRun, console: Console, *, verbose: bool) -> None:
    """Print a recorded run. `verbose`: every metric of each step."""
    with Page(console) as page:
        page.heading("Recorded run", arrange.title(run) + ("" if verbose else "; --verbose prints every metric"))
        _steps(page, *arrange.table(run, all_metrics=verbose))
        page.line()
        page.prose(Text(arrange.state(run), "" if run.complete else "bold yellow"))
        page.path(clean(run.run), "recorded in  ")
        if run.command:
            page.command(clean(run.command), "command      ")
        question, command = arrange.judged_by(run)
        page.command(command, f"{question:<12} ")


def _steps(page: Page, names: list[str], rows: list[list[str]]) -> None:
    """Print a table with numbers aligned to the right; one metric per line where it is too wide."""
    if not rows:
        return
    widths = [max(map(cell_len, column)) for column in zip(names, *rows, strict=True)]
    if sum(widths) + _GAP * (len(widths) - 1) <= page.columns:
        for row in (names, *rows):
            cells = [" " * (width - cell_len(cell)) + cell for cell, width in zip(row, widths, strict=True)]
            page.line(Text((" " * _GAP).join(cells), "dim" if row is names else ""))
        return
    labels = ["" if name == "step" else name for name in names]
    for row in rows:
        cells = [cell if label else f"step {cell}" for cell, label in zip(row, labels, strict=True)]
        page.row(cells, widths, labels, gap=_GAP)
