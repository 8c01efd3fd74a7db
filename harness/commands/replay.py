"""`harness replay`: a recorded run's rollouts drive the training again, and another engine only scores them."""

from __future__ import annotations

from typing import Annotated

import typer

from harness.command_options import of_options
from harness.commands.options import Format, Verbose
from harness.commands.showing import progress, show
from harness.parity.runs.run_options import ReplayOptions


@of_options
def replay(
    run: Annotated[
        str, typer.Argument(help="a run directory, one side of a parity directory, or a bundle", show_default=False)
    ],
    options: ReplayOptions,
    format: Format = "text",
    verbose: Verbose = False,
) -> None:
    """Train again on a recorded run's rollouts, and say whether its training or its rollouts are at fault.

    \b
    Example:
      harness replay runs/mine/candidate --backend sglang
    """
    from harness.parity.runs.replay import run_replay

    with progress() as view:
        verdict = run_replay(run, options, progress=view.update)
    show(verdict, format, verbose=verbose)
