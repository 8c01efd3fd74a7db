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
    from harness.errors import BadInput
    from reports.run_model import RecordedRun

    if issue and format not in ("text", "issue"):
        raise BadInput(f"--issue and --format {format} ask for two formats", fix="harness report RUN --issue")
    format = "issue" if issue else format
    path = resolve(run)
    if (path / "run.json").is_file() and not (path / verdict_file.NAME).is_file():
        if format == "issue":
            raise BadInput(
                f"{run} is one recorded run without a verdict: an issue needs what two runs, or a hang, came to",
                fix=f"harness diff BASELINE {run} --format issue",
            )
        show(RecordedRun.of(path), format)
    show(verdict_file.read(path), format, verbose=verbose)
