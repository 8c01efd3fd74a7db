"""`harness report`: show a verdict again."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.commands.options import Format, Verbose
from harness.commands.showing import show

if TYPE_CHECKING:
    from reports.model import RunSummary


def report(
    run: Annotated[str, typer.Argument(help="a directory with a verdict.json, or that file", show_default=False)],
    format: Format = "text",
    verbose: Verbose = False,
) -> None:
    """Show a verdict again, in any format."""
    import json

    from harness.errors import BadInput
    from reports.model import EXIT_CODES, Verdict

    path = Path(run) / "verdict.json" if Path(run).is_dir() else Path(run)
    try:
        verdict = Verdict.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError as error:
        raise BadInput(f"{path} does not exist", fix="harness parity … --out DIR writes one") from error
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(f"{path} is no verdict of this version: {error}") from error
    if verdict.kind == "parity" and verdict.exit_code != EXIT_CODES.get(verdict.verdict):
        raise BadInput(f"{path} says {verdict.verdict!r} with exit code {verdict.exit_code!r}: it was edited")
    if verdict.parity:
        runs = [_beside(run, path.parent) for run in verdict.parity.runs]
        verdict = dataclasses.replace(verdict, parity=dataclasses.replace(verdict.parity, runs=runs))
    show(verdict, format, verbose=verbose)


def _beside(run: RunSummary, folder: Path) -> RunSummary:
    """The run with the path that it has now: recordings lie beside their verdict, and both may have been moved."""
    moved = folder / run.side
    # os.path.isdir is false for what cannot be a path at all, where Path.is_dir raises.
    if not run.side or os.path.isdir(run.path) or not os.path.isdir(moved):
        return run
    return dataclasses.replace(run, path=str(moved))
