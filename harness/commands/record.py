"""`harness record -- CMD…`: record a job of OpenRLHF, verl or TRL, as it is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from harness.commands.options import stall_seconds
from harness.commands.showing import say, show_aside

if TYPE_CHECKING:
    from harness.triage.watch import Stall


def record(
    command: Annotated[list[str], typer.Argument(help="the command and its arguments", show_default=False)],
    framework: Annotated[
        str, typer.Option(help="its name in harness adapters list; auto: what the command and its scripts name")
    ] = "auto",
    out: Annotated[
        str, typer.Option(help="directory of the recording; default: a new one under runs/", show_default=False)
    ] = "",
    digests: Annotated[
        bool, typer.Option("--digests", help="record digests of the weights too: every sync then reads all of them")
    ] = False,
    seed: Annotated[
        int | None,
        typer.Option(help="of the order of OpenRLHF's prompts, which has none of its own", show_default=False),
    ] = None,
    stall: Annotated[
        str, typer.Option(help="also watch it: without progress for so long, it is looked at; 0: never")
    ] = "0",
    on_stall: Annotated[
        Literal["report", "end", "exit"], typer.Option("--on-stall", help="as of harness watch")
    ] = "report",
) -> None:
    """Record a job of OpenRLHF, verl or TRL without editing it; its output and exit code pass through."""
    from harness.frameworks.record import record as run

    def show(stalled: Stall) -> None:
        say(f"a stall, {stalled.seconds:.0f} s after the last progress; evidence: {stalled.evidence}")
        show_aside(stalled.verdict, "text")

    result = run(
        command, framework=framework, out=Path(out) if out else None, digests=digests, seed=seed,
        stall_s=stall_seconds(stall) or None, on_stall=on_stall, say=say, show=show,
    )  # fmt: skip
    raise typer.Exit(result.exit_code)
