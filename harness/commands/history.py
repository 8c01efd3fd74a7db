"""`harness history`: what the nights of `harness nightly` showed."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.commands.doors import group
from harness.commands.nightly import HistoryAt, NightFormat
from harness.commands.options import TextOrJson
from harness.commands.showing import show as show_subject
from harness.commands.showing import show_json
from harness.errors import BadInput
from harness.nightly import HISTORY
from harness.other_paths import free_path
from probes.files import make_folder, write_whole
from reports.layout import Page
from reports.nightly_model import Course, Measured, NightRow
from reports.sections.nightly import compared, plot
from reports.text import agreeing, clean, counted

if TYPE_CHECKING:
    from harness.nightly.history import History

app = group("What the nights of `harness nightly` showed.", "harness history list", "harness history show")
Cell = Annotated[str, typer.Argument(help="the name of a cell", show_default=False)]


def _opened(place: str) -> History:
    from harness.nightly.history import History, history_to_read

    return History.at(place, create=False, fix=history_to_read)


@app.command("list")
def list_(
    history: HistoryAt = HISTORY,
    limit: Annotated[int, typer.Option(min=1, help="how many nights to list, the newest first")] = 30,
    format: TextOrJson = "text",
) -> None:
    """List the last nights, each with how many cells had each status.

    \b
    Example:
      harness history list
    """
    with _opened(history) as past:
        listed = [
            NightRow(row.id, row.started, bool(row.finished), row.matrix, row.machine, dict(sorted(counts.items())))
            for row, counts in past.listing(limit)
        ]
    if format == "json":
        return show_json(listed)
    rows = []
    for night in listed:
        summary = ", ".join(f"{count} {status}" for status, count in night.cells.items()) or "no cell ran"
        summary += "" if night.finished else "; not ended"
        rows.append((str(night.number), night.started, clean(night.matrix), clean(night.machine), summary))
    with Page() as page:
        page.table(("night", "started", "matrix", "machine", "cells"), rows)


@app.command()
def show(
    night: Annotated[
        int | None, typer.Argument(help="the number of a night; default: the last", show_default=False)
    ] = None,
    history: HistoryAt = HISTORY,
    format: NightFormat = "text",
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="also show the cells that did not change")] = False,
) -> None:
    """Show a night again, in any format; exits with the code that it had.

    \b
    Example:
      harness history show 12
    """
    with _opened(history) as past:
        past_night = past.night(night)
    show_subject(past_night, format, verbose=verbose)


@app.command()
def compare(
    first: Annotated[int, typer.Argument(help="the number of a night", show_default=False)],
    second: Annotated[int, typer.Argument(help="the number of another night", show_default=False)],
    history: HistoryAt = HISTORY,
    format: TextOrJson = "text",
) -> None:
    """Compare two nights: the cells whose verdict or problems differ.

    \b
    Example:
      harness history compare 11 12
    """
    with _opened(history) as past:
        rows = compared(past.night(first), past.night(second))
    if format == "json":
        return show_json(rows)
    verb = agreeing(len(rows), "differs", "differ")
    with Page() as page:
        for row in rows:
            page.prose(f"{clean(row.cell)}: {clean(row.first)} → {clean(row.second)}", indent="  ")
        page.prose(f"{counted(len(rows), 'cell')} {verb} between nights {first} and {second}")


@app.command()
def metric(
    cell: Cell,
    name: Annotated[
        str, typer.Argument(help="the name of a metric, or seconds for the time of the cell", show_default=False)
    ] = "max_delta_logprob",
    history: HistoryAt = HISTORY,
    nights: Annotated[int, typer.Option(min=1, help="how many nights to show, up to the last")] = 60,
    format: TextOrJson = "text",
) -> None:
    """Plot a metric of a cell over its nights.

    \b
    Example:
      harness history metric tiny k1
    """
    with _opened(history) as past:
        rows = past.past(cell, last=nights)
    if not rows:
        raise BadInput(f"no night ran a cell {cell!r}", fix=past.command("show", verbose=True))
    metric_names = sorted({key for row in rows for key in row.observation.metrics} | {"seconds"})
    if name not in metric_names:
        raise BadInput(
            f"the cell has no metric {name!r}: {', '.join(metric_names)}",
            fix=past.command("metric", cell, metric_names[0]),
        )
    observations = [row.observation for row in rows]
    values = [
        observation.seconds if name == "seconds" else observation.metrics.get(name, float("nan"))
        for observation in observations
    ]
    if format == "json":
        course = [
            Measured(row.night, value if value == value else None) for row, value in zip(rows, values, strict=True)
        ]
        return show_json(Course(cell, name, course))
    typer.echo("\n".join([f"{name} of {cell}", *plot(values, [f"night {row.night}" for row in rows])]))


@app.command()
def html(
    folder: Annotated[
        Path,
        typer.Argument(
            help="the directory to write: a new or empty one, or that of an earlier dashboard", show_default=False
        ),
    ],
    history: HistoryAt = HISTORY,
    nights: Annotated[int, typer.Option(min=2, help="how many nights to show, up to the last")] = 60,
) -> None:
    """Write a dashboard that opens offline: every cell over the nights, and a page for each cell.

    \b
    Example:
      harness history html site
    """
    from reports.dashboard import MARKER, write

    if folder.exists() and not (folder / MARKER).exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadInput(
            f"{folder} is not empty, and no dashboard", fix=shlex.quote(str(free_path(folder))), instead=str(folder)
        )
    with _opened(history) as past:
        days = [(row.id, row.started) for row, _ in past.listing(nights)]
        make_folder(folder / "cells")
        pages = write(folder, list(reversed(days)), past.course(nights), write_whole)
    typer.echo(f"{folder / MARKER}: {counted(pages, 'cell')}")
