"""`harness replay`: a recorded run's rollouts drive the training again, and another engine only scores them."""

from __future__ import annotations

from typing import Annotated

import typer

from harness.commands.options import Address, Cap, Cold, Device, Format, Out, Stall, Strict, Verbose
from harness.commands.showing import progress, show
from harness.quantities import stall_seconds


def replay(
    run: Annotated[
        str, typer.Argument(help="a run directory, one side of a parity directory, or a bundle", show_default=False)
    ],
    backend: Annotated[
        str,
        typer.Option(help="the engine that scores the recorded tokens: ENGINE, ENGINE@ENVIRONMENT or ENGINE@VERSION"),
    ] = "hf",
    steps: Annotated[
        int | None,
        typer.Option(help="replay the run up to this number of steps; default: all of it", min=1, show_default=False),
    ] = None,
    from_step: Annotated[
        int, typer.Option("--from-step", help="begin at the last checkpoint that the run saved before this step", min=0)
    ] = 0,
    cap: Cap = None,
    strict: Strict = False,
    out: Out = "",
    address: Address = None,
    device: Device = "auto",
    cold: Cold = False,
    stall: Stall = "60s",
    format: Format = "text",
    verbose: Verbose = False,
) -> None:
    """Train again on a recorded run's rollouts, and say whether its training or its rollouts are at fault.

    \b
    Example:
      harness replay runs/mine/candidate --backend sglang
    """
    from harness.parity.runs.options import ReplayOptions
    from harness.parity.runs.replay import run_replay

    with progress() as view:
        options = ReplayOptions(
            backend=backend,
            steps=steps,
            from_step=from_step,
            cap=cap,
            strict=strict,
            out=out or None,
            address=address,
            device=device,
            cold=cold,
            stall_s=stall_seconds(stall),
            progress=view.update,
        )
        verdict = run_replay(run, options)
    show(verdict, format, verbose=verbose)
