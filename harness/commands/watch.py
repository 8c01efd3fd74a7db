"""`harness watch -- CMD…`: run any command under the watchdog."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from harness.commands.options import TokenFile
from harness.commands.showing import format_option, say, show_aside
from harness.commands.typed_options import refuse_idle
from harness.errors import BadInput
from harness.exit_codes import STALLED
from harness.quantities import seconds, size
from harness.triage.remote import token
from reports.model import UNDECIDED

if TYPE_CHECKING:
    from harness.triage.watch import Serving, Stall
    from harness.triage.watch.watched_command import OnStall, WatchOptions
    from reports.model import Verdict


def watch(
    context: typer.Context,
    command: Annotated[
        list[str] | None, typer.Argument(help="the command to run, with its arguments", show_default=False)
    ] = None,
    stall: Annotated[
        str, typer.Option(help="examine the command when it made no progress for this long: 90s, 5m, 1h")
    ] = "60s",
    out: Annotated[
        str,
        typer.Option(
            help="the directory for recordings, evidence and the verdict; default: a new one under runs/",
            show_default=False,
        ),
    ] = "",
    on_stall: Annotated[
        Literal["report", "end", "exit"],
        typer.Option(
            "--on-stall",
            help="what to do about a hang. report: leave the command alone; end: end it and exit with 86; exit: leave "
            "it running and exit with 86",
        ),
    ] = "report",
    format: Annotated[str, format_option("triage", "the format of the verdict, which is printed to stderr")] = "text",
    keep: Annotated[
        int, typer.Option(min=2, help="how many evidence directories to keep, the first and the last among them")
    ] = 32,
    keep_size: Annotated[
        str,
        typer.Option(
            "--keep-size",
            help="how many bytes of evidence to keep: 500M, 1G; the first and the last directory are always kept",
        ),
    ] = "1G",
    serve: Annotated[
        str,
        typer.Option(
            help="give evidence of this host to harness triage http://HOST:PORT, at [HOST:]PORT; HOST is 127.0.0.1 "
            "without one",
            show_default=False,
        ),
    ] = "",
    serve_after: Annotated[
        str, typer.Option("--serve-after", help="serve so long after the end of a command that had a stall")
    ] = "5m",
    token_file: TokenFile = "",
    pid: Annotated[
        int | None,
        typer.Option(
            metavar="PID",
            help="in place of a command: attach to the job of a running process, without a restart, and look at it "
            "once a --stall; the verdict says what a start under the watch would add",
            show_default=False,
        ),
    ] = None,
    slow: Annotated[
        bool,
        typer.Option(
            "--slow", help="look once a --stall who stays slow: which rank comes last to the collectives, by how much"
        ),
    ] = False,
    on_verdict: Annotated[
        str,
        typer.Option(
            "--on-verdict",
            metavar="COMMAND",
            help="a line of sh that gets each new verdict as JSON on its standard input: a chat hook, a pager, a "
            "requeue; it never holds the watch up, and has 5 s more when the watch ends",
            show_default=False,
        ),
    ] = "",
) -> None:
    """Run any command under the watchdog; judge a stall and report it. Its output and exit code pass through.

    Exits with the command's own code (128 + n: by signal n); with 86 if it was found hung and --on-stall is end or
    exit, with 126 or 127 if the command is not executable or not found.

    \b
    Example:
      harness watch --stall 5m -- torchrun --nproc-per-node 8 train.py
    """
    from harness.triage.watch import Limits
    from harness.triage.watch.watched_command import WatchOptions

    options = WatchOptions(
        stall_s=seconds(stall), out=Path(out) if out else None, on_stall=on_stall, slow=slow, say=say,
        show=_shown_on_stderr(on_stall, format, attached=pid is not None), limits=Limits(keep, size(keep_size)),
    )  # fmt: skip
    if pid is not None:
        _refuse_beside_pid(context, pid, started=bool(command or serve), slow=slow)
        raise typer.Exit(_attach(pid, options, on_verdict))
    raise typer.Exit(_run(command or [], options, on_verdict, _serving(context, serve, serve_after, token_file)))


def _shown_on_stderr(on_stall: OnStall, format: str, *, attached: bool) -> Callable[[Stall], None]:
    """What prints a stall for the user. `attached`: the watch saw nothing of the job between its looks."""

    def show(stall: Stall) -> None:
        looked = f"a stall: nothing has moved for {stall.seconds:.0f} s of looking"
        watched = f"a stall, {stall.seconds:.0f} s after the last progress"
        say(f"{looked if attached else watched}; evidence: {stall.evidence}")
        show_aside(_with_code_of_watch(stall.verdict, on_stall, format), format)

    return show


def _refuse_beside_pid(context: typer.Context, pid: int, *, started: bool, slow: bool) -> None:
    """Raise BadInput for what a watch cannot do with a job that runs already. `started`: there is a command as well, or
    evidence is to be served."""
    if started:
        raise BadInput("--pid attaches to a running job: it takes neither a command nor --serve",
                       fix=f"harness watch --pid {pid}")  # fmt: skip
    refuse_idle(context, ["serve_after", "token_file"], "--pid serves no evidence")
    if slow:
        raise BadInput("--slow reads the flight recorders of a job, which a watch has from its start only",
                       fix="   # or from its start: harness watch --slow -- COMMAND", instead="--slow")  # fmt: skip


def _serving(context: typer.Context, serve: str, serve_after: str, token_file: str) -> Serving | None:
    """The server of evidence that was asked for; None without `serve`, the address."""
    if not serve:
        refuse_idle(context, ["serve_after", "token_file"], "evidence is served only with --serve", "--serve 0")
        return None
    from harness.triage.remote.serve import Server, place
    from harness.triage.watch import Serving

    place(serve)  # a wrong address is told before a token is asked for
    serving = Serving(Server(serve, token.read(token_file, make=True)), seconds(serve_after, "--serve-after"))
    where = "this host only; --serve HOST:PORT for others" if serving.server.local else "whoever has the token"
    say(f"evidence is served at {serving.server.url} to {where}")
    return serving


@contextlib.contextmanager
def _handed_on(on_verdict: str) -> Iterator[Callable[[Verdict], None]]:
    """What hands each verdict on to the user's command, if there is one; at the end it waits shortly for that
    command."""
    if not on_verdict:
        yield lambda verdict: None
        return
    from harness.triage.watch.notices import Notices

    notices = Notices(on_verdict, say)
    try:
        yield notices.put
    finally:
        notices.close()


def _attach(pid: int, options: WatchOptions, on_verdict: str) -> int:
    from harness.triage.watch.attached import attach

    with _handed_on(on_verdict) as hand_on:
        return attach(pid, dataclasses.replace(options, on_verdict=hand_on)).exit_code


def _run(command: list[str], options: WatchOptions, on_verdict: str, serving: Serving | None) -> int:
    """Run a command under the watch, say how it ended, and return the exit code."""
    from harness.frameworks.configured import Configured
    from harness.frameworks.detection import detect, recognised
    from harness.frameworks.record import finished, say_end
    from harness.triage.watch import watch as run
    from harness.triage.watch.watched_command import hang_of

    # A job of a known framework gets its hooks too: their spans say what a process was at. `record` asks more of it.
    job = detect(command, matches[0].name) if len(matches := recognised(command)) == 1 else None
    with _handed_on(on_verdict) as hand_on:
        result = run(
            command, options, serving=serving, on_verdict=hand_on,
            environ={**os.environ, **job.variables()} if job else None,
            beside=(lambda folder: Configured(job.framework, folder, say)) if job else contextlib.nullcontext,
            indexed=job is not None,
        )  # fmt: skip
    say_end(result, command, options, os.environ)
    if job and result.directory:
        finished(job, result.directory, result.exit_code, say)
    if hang := hang_of(result, options.out):
        say(hang)
    return result.exit_code


def _with_code_of_watch(verdict: Verdict, on_stall: OnStall, format: str) -> Verdict:
    """Return the verdict with the exit code that this watch will have, for a person to read.

    Formats for programs keep the verdict's own code, which their schemas bind to it.
    """
    if format not in ("text", "md"):
        return verdict
    return dataclasses.replace(verdict, exit_code=UNDECIDED if on_stall == "report" else STALLED)
