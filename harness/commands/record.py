"""`harness record -- CMD…`: record a job of OpenRLHF, verl or TRL, as it is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from harness.commands.showing import say, show_aside
from harness.commands.typed_options import refuse_idle
from harness.exit_codes import NOT_RECORDED
from harness.quantities import stall_seconds

if TYPE_CHECKING:
    from harness.triage.watch import Stall


def record(
    context: typer.Context,
    command: Annotated[list[str], typer.Argument(help="the command to run, with its arguments", show_default=False)],
    framework: Annotated[
        str,
        typer.Option(
            help="the framework, as harness adapters list names it; auto: found from the command and its scripts"
        ),
    ] = "auto",
    out: Annotated[
        str, typer.Option(help="the directory to record into; default: a new one under runs/", show_default=False)
    ] = "",
    digests: Annotated[
        bool,
        typer.Option("--digests", help="record digests of the weights too, for which every sync reads all weights"),
    ] = False,
    seed: Annotated[
        int | None,
        typer.Option(
            help="the seed of the order of prompts, for OpenRLHF, which has no such option", show_default=False
        ),
    ] = None,
    stall: Annotated[
        str, typer.Option(help="also examine the job when it made no progress for this long: 90s, 5m, 1h; 0: never")
    ] = "0",
    on_stall: Annotated[
        Literal["report", "end", "exit"],
        typer.Option("--on-stall", help="what to do after a stall, as for harness watch"),
    ] = "report",
) -> None:
    """Record a job of OpenRLHF, verl or TRL without editing it; its output and exit code pass through.

    Exits with the job's own code (128 + n: by signal n); with 3 if the job ended with 0 and no rollout was recorded,
    with 86 if it was found hung and --on-stall is end or exit, with 126 or 127 if the command is not executable or not
    found.

    \b
    Example:
      harness record --out runs/mine -- python -m verl.trainer.main_ppo
    """
    from harness.frameworks.record import record as run

    stall_s = stall_seconds(stall)
    if not stall_s:
        refuse_idle(context, ["on_stall"], "stalls are looked for only with --stall", "--stall 5m")

    def show(stalled: Stall) -> None:
        say(f"a stall, {stalled.seconds:.0f} s after the last progress; evidence: {stalled.evidence}")
        show_aside(stalled.verdict, "text")

    result = run(
        command, framework=framework, out=Path(out) if out else None, digests=digests, seed=seed,
        stall_s=stall_s or None, on_stall=on_stall, say=say, show=show,
    )  # fmt: skip
    raise typer.Exit(result.exit_code or (NOT_RECORDED if result.unrecorded else 0))
