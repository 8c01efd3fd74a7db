"""`harness report`: show a verdict, or a recorded run, again."""

from __future__ import annotations

from typing import Annotated

import typer

from harness.commands.options import Format, Verbose
from harness.commands.showing import show


def report(
    run: Annotated[
        str,
        typer.Argument(
            help="a directory with a verdict.json, that file, a recorded run, or a bundle", show_default=False
        ),
    ],
    format: Format = "text",
    issue: Annotated[bool, typer.Option("--issue", help="the same as --format issue: to paste into a tracker")] = False,
    verbose: Verbose = False,
) -> None:
    """Show a verdict or a recorded run again, in any format."""
    from harness import verdict_file
    from harness.bundle.opening import resolve
    from reports.run_model import RecordedRun

    format = "issue" if issue else format
    path = resolve(run)
    if (path / "run.json").is_file() and not (path / verdict_file.NAME).is_file():
        show(RecordedRun.of(path), format)
    show(verdict_file.read(path), format, verbose=verbose)
