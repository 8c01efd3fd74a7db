"""`harness watch -- CMD…`: run any command under the watchdog."""

from __future__ import annotations

import contextlib
import math
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from harness.commands.showing import format_option
from probes import redaction

if TYPE_CHECKING:
    from harness.triage.watch import Stall
    from reports.model import Verdict

_UNITS = {"ms": 0.001, "s": 1.0, "": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_SIZES = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}  # powers of two


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
    format: Annotated[str, format_option("triage", "of the verdict, which is printed to stderr")] = "text",
    keep: Annotated[
        int, typer.Option(min=2, help="evidence directories that are kept; the first and the last always are")
    ] = 32,
    keep_size: Annotated[
        str, typer.Option("--keep-size", help="bytes of evidence that are kept: 500M, 1G; the same two always are")
    ] = "1G",
) -> None:
    """Run any command under the watchdog; its output and exit code pass through, a stall is judged and reported."""
    from harness.frameworks.detection import detect, recognised
    from harness.frameworks.record import finished
    from harness.triage.watch import Limits
    from harness.triage.watch import watch as run

    limits = Limits(keep, size(keep_size))

    def show(stall: Stall) -> None:
        say(f"a stall, {stall.seconds:.0f} s after the last progress; evidence: {stall.evidence}")
        print_verdict(stall.verdict, format)

    # A job of a known framework gets its hooks too: their spans say what a process was at. `record` asks more of it.
    job = detect(command, known[0].framework) if len(known := recognised(command)) == 1 else None
    result = run(
        command, stall_s=seconds(stall), out=Path(out) if out else None, on_stall=on_stall, say=say, show=show,
        limits=limits, environ={**os.environ, **job.variables()} if job else None,
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
        raise BadInput(f"--stall {text!r} is no duration", fix="--stall 90s   # or 5m, 1h")
    return value


def size(text: str) -> int:
    """A number of bytes such as 500M, 1G or 1.5GiB (powers of two); BadInput for anything else."""
    from harness.errors import BadInput

    found = re.fullmatch(r"(\d+(?:\.\d*)?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    value = int(float(found[1]) * 2 ** _SIZES[found[2].upper()]) if found else 0
    if not value:
        raise BadInput(f"--keep-size {text!r} is no size", fix="--keep-size 500M   # or 1G")
    return value


def say(line: str) -> None:
    """Print a line for the user to stderr; once that was closed, what is printed there goes nowhere."""
    try:
        print(redaction.text(f"harness: {line}", 0), file=sys.stderr, flush=True)
    except (OSError, ValueError):
        with contextlib.suppress(OSError, ValueError):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, sys.stderr.fileno())
            os.close(null)


def print_verdict(verdict: Verdict, format: str) -> None:
    """Print a verdict to stderr: stdout is the command's."""
    import reports

    reports.write(verdict, format, sys.stderr)
