"""`harness audit`: judge one recorded run by itself."""

from __future__ import annotations

from typing import Annotated

import typer

from harness.commands.options import Verbose
from harness.commands.showing import format_option, progress, show
from harness.parity.runs.run_options import Cap, Strict


def audit(
    run: Annotated[
        str,
        typer.Argument(
            help="a run directory of harness run or record, a side of a pair (DIR/candidate), or a bundle of one run",
            show_default=False,
        ),
    ],
    cap: Cap = None,
    strict: Strict = False,
    format: Annotated[str, format_option("audit")] = "text",
    verbose: Verbose = False,
) -> None:
    """Say whether one recorded run is sound in itself: its recording, engine, weights, tokens and ranks.

    \b
    Example:
      harness audit runs/mine
    """
    from harness.parity.runs.run import audit as judge

    with progress() as view:
        verdict = judge(run, cap=cap, strict=strict, progress=view.update)
    show(verdict, format, verbose=verbose)
