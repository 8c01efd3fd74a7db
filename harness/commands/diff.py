"""`harness diff`: judge two recorded runs."""

from __future__ import annotations

from typing import Annotated

import typer

from harness.commands.options import Format, Verbose
from harness.commands.showing import progress, show
from harness.parity.runs.run_options import Cap, Strict


def diff(
    baseline: Annotated[
        str,
        typer.Argument(
            help="the run to compare with: a run directory or a bundle; alone: a directory or bundle that holds a pair",
            show_default=False,
        ),
    ],
    candidate: Annotated[
        str, typer.Argument(help="the run that is judged: a run directory or a bundle", show_default=False)
    ] = "",
    again: Annotated[
        str,
        typer.Option(
            help="a second run of the baseline's job, from which the noise between equal runs is measured",
            show_default=False,
        ),
    ] = "",
    cap: Cap = None,
    strict: Strict = False,
    format: Format = "text",
    verbose: Verbose = False,
) -> None:
    """Judge two recorded runs, ours or another framework's.

    \b
    Example:
      harness diff runs/before runs/after
    """
    from harness.parity.runs.run import diff as judge

    with progress() as view:
        verdict = judge(baseline, candidate or None, again=again or None, cap=cap, strict=strict, progress=view.update)
    show(verdict, format, verbose=verbose)
