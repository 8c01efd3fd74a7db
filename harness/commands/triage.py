"""`harness triage`: who is stuck, who only waits, and why."""

from __future__ import annotations

from typing import Annotated

import typer

from harness.commands.options import Verbose
from harness.commands.showing import format_option, show


def triage(
    what: Annotated[
        list[str] | None,
        typer.Argument(
            help="a run directory, pids, a Ray address, an evidence directory or its zip, the directories of all nodes "
            "of a job (or the one that holds them), a bundle, a directory of flight recorder dumps; default: the Ray "
            "cluster of this host",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        str,
        typer.Option(help="keep evidence and verdict.json here; default: a temporary directory", show_default=False),
    ] = "",
    format: Annotated[str, format_option("triage")] = "text",
    verbose: Verbose = False,
) -> None:
    """Say who is stuck in a job that stands still, who only waits, and why; or that the evidence is not enough."""
    from harness.triage.run import triage as run

    show(run(what or [], out or None), format, verbose=verbose)
