"""`harness bisect`: which release, commit or setting made a comparison bad?"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

import reports
from harness import dates
from harness.bisect.bisect_options import BisectOptions
from harness.command_options import of_options
from harness.commands.showing import format_option, say, show
from harness.commands.typed_options import refuse_idle
from harness.errors import BadInput, HarnessError
from harness.quantities import seconds
from probes.files import write_whole


@of_options
def bisect(
    context: typer.Context,
    options: BisectOptions,
    out: Annotated[
        str,
        typer.Option(
            help="the directory of the search, in which the same command continues; default: a new one under runs/"
        ),
    ] = "",
    resume: Annotated[str, typer.Option(help="continue the search in this directory", show_default=False)] = "",
    format: Annotated[str, format_option("bisect")] = "text",
) -> None:
    """Find the release, the commit or the smallest set of settings that made a comparison bad.

    Exits with 0 if it is found, with 3 if the comparisons do not tell.

    \b
    Example:
      harness bisect vllm@0.29..0.32 --against sglang -- --scenario rollout-tiny
    """
    from harness.bisect import commits, jobs, releases, settings
    from harness.bisect.journal import Journal
    from harness.bisect.judging import Judge
    from harness.bisect.request import Request
    from harness.bisect.search import Search

    request = Request.of(options)
    if resume:
        if request != Request():
            raise BadInput(
                "--resume goes on with what was asked: it takes no other option",
                fix=f"harness bisect --resume {shlex.quote(resume)}",
            )
        refuse_idle(context, ["out"], "--resume goes on in its own directory")
        journal = Journal.load(Path(resume).resolve())
    else:
        seconds(request.limit, "--limit")
        request.check()
        if request.over != "releases":
            why = f"a bisection over {request.over} makes no environment of a release"
            refuse_idle(context, ["keep_envs"], why)
        journal = Journal.begin(Path(out or f"runs/bisect-{dates.stamp()}").resolve(), request)
    search = Search(journal, Judge(journal.request), say)
    over = {
        "releases": releases.bisect,
        "settings": jobs.bisect if journal.request.framework else settings.bisect,
        "commits": commits.bisect,
    }
    try:
        bisection = over[journal.request.over](search)
        write_whole(journal.folder / "bisect.json", reports.render(bisection, "json").encode())
    except HarnessError:
        if journal.steps:
            say(f"harness bisect --resume {journal.folder} goes on")
        raise
    except KeyboardInterrupt as error:
        error.add_note(f"harness bisect --resume {journal.folder} goes on")
        raise
    finally:
        journal.close()
    show(bisection, format)
