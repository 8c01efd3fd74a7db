"""`harness triage`: who is stuck, who only waits, and why."""

from __future__ import annotations

from typing import Annotated

import typer

from harness.commands.options import TokenFile
from harness.commands.showing import format_option, say, show
from harness.commands.typed_options import refuse_idle


def triage(
    context: typer.Context,
    what: Annotated[
        list[str] | None,
        typer.Argument(
            help="what to judge: pids, a Ray address, a run directory, an evidence directory or its zip, the evidence "
            "directories of all nodes of a job (or the directory that holds them), the URLs of watches that serve "
            "theirs (harness watch --serve), a bundle, a directory of flight recorder dumps, or stacks that somebody "
            "pasted: files, folders or archives with the output of py-spy dump, pystack, gdb or faulthandler, logs "
            "with NCCL's lines about a timeout, - for the standard input; "
            "default: the Ray cluster of this host",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        str,
        typer.Option(
            help="write verdict.json, and evidence that is taken now, into this directory; default: a new one under "
            "runs/ for live processes, none for recorded evidence",
            show_default=False,
        ),
    ] = "",
    token_file: TokenFile = "",
    end: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL",
            help="when the job hangs, tell this watch of the same job (harness watch --serve --on-stall end), which "
            "then ends its command and exits with 86; may be repeated",
            show_default=False,
        ),
    ] = None,
    format: Annotated[str, format_option("triage")] = "text",
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="also print coverage, figures and every finding")
    ] = False,
) -> None:
    """Say who is stuck in a job that stands still, who only waits, and why; or that the evidence is not enough.

    \b
    Example:
      harness triage 7461
    """
    import os

    from harness.triage.collect.stacks import missing
    from harness.triage.remote import gather, token
    from harness.triage.run import triage as run

    if end:
        gather.check(end)
        secret = token.read(token_file)
    elif not any(map(gather.is_url, what or [])):
        why = "only watches ask for a token, and no URL of one is given"
        refuse_idle(context, ["token_file"], why)
    live = not any(word == "-" or (os.path.exists(word) and not word.isdigit()) for word in what or [])
    if live and (absent := missing()):
        say(absent)
    verdict = run(what or [], out or None, token_file=token_file, tell=say)
    if end and verdict.verdict == "HUNG":
        for url, why in gather.end(end, secret).items():
            say(f"{url} was not told that the job hangs: {why}")
    show(verdict, format, verbose=verbose)
