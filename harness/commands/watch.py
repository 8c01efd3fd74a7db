"""`harness watch -- CMD…`: run any command under the watchdog."""

from __future__ import annotations

import math
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from harness.triage.watch import Stall
    from reports.model import Verdict

_UNITS = {"ms": 0.001, "s": 1.0, "": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


def watch(
    command: Annotated[list[str], typer.Argument(help="the command and its arguments", show_default=False)],
    stall: Annotated[str, typer.Option(help="without progress for so long, it is looked at: 90s, 5m, 1h")] = "60s",
    out: Annotated[
        str,
        typer.Option(help="directory of recordings, evidence, verdict; default: one under runs/", show_default=False),
    ] = "",
    on_stall: Annotated[
        Literal["report", "end", "exit"],
        typer.Option(
            "--on-stall",
            help="report: leave the command alone; end: end it; exit: leave it running. The last two exit with 86",
        ),
    ] = "report",
    format: Annotated[
        Literal["text", "json", "md"], typer.Option("--format", help="of the verdict, which is printed to stderr")
    ] = "text",
) -> None:
    """Run any command under the watchdog; its output and exit code pass through, a stall is judged and reported."""
    import os

    from harness.frameworks.detection import detect, recognised
    from harness.frameworks.record import finished
    from harness.triage.watch import watch as run

    def say(line: str) -> None:
        print(f"harness: {line}", file=sys.stderr, flush=True)

    def show(stall: Stall) -> None:
        say(f"a stall, {stall.seconds:.0f} s after the last progress; evidence: {stall.evidence}")
        print_verdict(stall.verdict, format)

    # A job of a known framework gets its hooks too: their spans say what a process was at. `record` asks more of it.
    job = detect(command, known[0].framework) if len(known := recognised(command)) == 1 else None
    result = run(
        command, stall_s=seconds(stall), out=Path(out) if out else None, on_stall=on_stall, say=say, show=show,
        environ={**os.environ, **job.variables()} if job else None,
    )  # fmt: skip
    if job and result.directory:
        finished(job, result.directory, result.exit_code, say)
    raise typer.Exit(result.exit_code)


def seconds(text: str) -> float:
    """A duration such as 90s, 1.5m or 1h, in seconds; BadInput for anything else."""
    from harness.errors import BadInput

    found = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)\s*(ms|s|min|m|h|)", text.strip())
    value = float(found[1]) * _UNITS[found[2]] if found else 0.0
    if not 0 < value < math.inf:
        raise BadInput(f"--stall {text!r} is no duration", mend="--stall 90s   # or 5m, 1h")
    return value


def print_verdict(verdict: Verdict, format: str) -> None:
    """Print a verdict to stderr: stdout is the command's."""
    if format == "text":
        from rich.console import Console

        from reports import terminal

        terminal.print_verdict(verdict, Console(stderr=True))
    else:
        import reports

        print(reports.render(verdict, format), end="", file=sys.stderr, flush=True)
