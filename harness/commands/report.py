"""`harness report`: show a verdict, or a recorded run, again."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness import verdict_file
from harness.commands.options import Format, Verbose
from harness.commands.showing import show
from harness.errors import BadInput, HarnessError, closest, collected, nearest, refuse
from harness.nearest_run import not_a_run
from harness.other_paths import another_out
from probes.files import close_to_others, folder_or_nothing
from reports import exporters
from reports.run_model import RecordedRun

if TYPE_CHECKING:
    from reports.run_model import RecordedRun


def report(
    run: Annotated[
        str,
        typer.Argument(
            help="a directory of harness run, parity, record or triage, a verdict.json, or a bundle", show_default=False
        ),
    ],
    format: Format = "text",
    issue: Annotated[
        bool, typer.Option("--issue", help="the same as --format issue: text to paste into an engine's issue tracker")
    ] = False,
    export: Annotated[
        str,
        typer.Option(
            help="write a recorded run's metrics as files of this tracker instead; nothing is sent",
            metavar="|".join(exporters.names()),
            show_default=False,
        ),
    ] = "",
    out: Annotated[
        Path | None, typer.Option(help="the new folder that --export writes into", show_default=False)
    ] = None,
    verbose: Verbose = False,
) -> None:
    """Show a verdict or a recorded run again, in any format; or export a run's metrics to a tracker.

    \b
    Example:
      harness report runs/mine --verbose
    """
    from harness.bundle.opening import resolve

    if issue and format not in ("text", "issue"):
        raise BadInput(
            f"--issue and --format {format} ask for two formats", fix="   # or without --issue", instead="--format"
        )
    format = "issue" if issue else format
    path = resolve(run)
    if out is not None and not export and format != "text":
        raise _for_stdout(run, format, out, f"--out belongs to --export; {format} goes to stdout")
    if out is not None and not export and not (path / "run.json").is_file():
        what = "--out belongs to --export, which takes a recorded run; a verdict goes to stdout"
        raise _for_stdout(run, _format_of(out), out, what)
    if export or out:
        mistakes: list[HarnessError] = []
        with collected(mistakes):
            write, folder = _exporter(export, out)
        with collected(mistakes):
            if not (path / "run.json").is_file():
                raise not_a_run(f"{run} is not a recorded run: it has no run.json", path, run)
        refuse(mistakes)
        _export(RecordedRun.of(path), write, folder)
        return
    if (path / "run.json").is_file() and not (path / verdict_file.NAME).is_file():
        if format == "issue":
            raise BadInput(
                f"{run} is one recorded run without a verdict: an issue needs what two runs, or a hang, came to",
                fix=f"harness diff BASELINE {run} --format issue",
            )
        show(RecordedRun.of(path), format, verbose=verbose)
    show(verdict_file.read(path), format, verbose=verbose)


def _for_stdout(run: str, format: str, out: Path, message: str) -> BadInput:
    fix = f"{shlex.join(['harness', 'report', run, '--format', format])} > {shlex.quote(str(out))}"
    return BadInput(message, fix=fix)


def _format_of(out: Path) -> str:
    """The format that a file's name asks for."""
    return {".html": "html", ".md": "md", ".json": "json", ".xml": "junit"}.get(out.suffix, "text")


def _exporter(tracker: str, out: Path | None) -> tuple[Callable[[RecordedRun, Path], None], Path]:
    """What writes for a tracker, and the folder. Raises BadInput for one that does not exist, and without a folder."""
    names = exporters.names()
    if tracker and tracker not in names:
        raise BadInput(
            f"there is no tracker {tracker!r}: it is one of {', '.join(names)}{closest(tracker, names)}",
            fix=f"--export {nearest(tracker, names) or names[0]}",
        )
    if not tracker or out is None:
        lacking = "--out DIR" if tracker else f"--export {names[0]}"
        raise BadInput("--export TRACKER and --out DIR belong together", fix=lacking)
    return exporters.find(tracker), out


def _export(recorded: RecordedRun, write: Callable[[RecordedRun, Path], None], out: Path) -> None:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise BadInput(f"{out} is not empty; an export never mixes with another", fix=another_out(out))
    with folder_or_nothing(out, whole=True):
        write(recorded, out)
        close_to_others(out)
    print(out)
