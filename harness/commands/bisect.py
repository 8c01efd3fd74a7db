"""`harness bisect`: which release, commit or setting made a comparison bad?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness import dates
from harness.commands.showing import format_option, say, show
from harness.errors import BadInput, HarnessError
from harness.quantities import seconds
from probes.files import write_whole


def bisect(
    what: Annotated[
        str,
        typer.Argument(
            help="ENGINE@GOOD..BAD to search releases, or commits with --repo; GOOD..BAD to search commits with --run; "
            "a backend to search settings with --good and --bad, by default the recorded one or hf",
            show_default=False,
        ),
    ] = "",
    options: Annotated[
        list[str] | None,
        typer.Argument(help="after --: options for each comparison, as harness parity or harness run takes them"),
    ] = None,
    against: Annotated[
        str, typer.Option(help="the backend that is the baseline of each comparison", show_default=False)
    ] = "",
    good: Annotated[
        str,
        typer.Option(
            help="the good end of a search over settings: a scenario (.toml) or a run directory", show_default=False
        ),
    ] = "",
    bad: Annotated[
        str,
        typer.Option(
            help="the bad end of a search over settings: a scenario (.toml) or a run directory", show_default=False
        ),
    ] = "",
    framework: Annotated[
        str,
        typer.Option(
            help="the ends are two commands of jobs of this framework, each in quotes; auto: found from them",
            show_default=False,
        ),
    ] = "",
    repo: Annotated[str, typer.Option(help="search the commits of this git repository", show_default=False)] = "",
    run: Annotated[
        str,
        typer.Option(
            help="a command to run in a checkout of each commit; it exits with 0 if the commit is good, 125 to skip "
            "it, else up to 127 if it is bad",
            show_default=False,
        ),
    ] = "",
    build: Annotated[
        str,
        typer.Option(
            help="a command to run in a checkout of each commit, which installs it for $HARNESS_BISECT_PYTHON; "
            "default: uv pip install",
            show_default=False,
        ),
    ] = "",
    metric: Annotated[
        str,
        typer.Option(
            help="call a comparison bad if this metric is above --above, whatever its verdict", show_default=False
        ),
    ] = "",
    above: Annotated[float | None, typer.Option(help="the bound for --metric", show_default=False)] = None,
    cause: Annotated[str, typer.Option(help="call a comparison bad if this cause is found", show_default=False)] = "",
    limit: Annotated[str, typer.Option(help="skip a comparison that takes longer than this")] = "30m",
    keep_envs: Annotated[int, typer.Option(help="how many environments to keep at a time", min=1)] = 3,
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
    import reports
    from harness.bisect import commits, jobs, releases, settings
    from harness.bisect.journal import Journal
    from harness.bisect.judging import Judge
    from harness.bisect.request import Request
    from harness.bisect.search import Search

    words = tuple(options or ())
    if what.startswith("-"):  # there was no WHAT before --
        what, words = "", (what, *words)
    request = Request(
        what=what,
        against=against,
        good=good if framework else _absolute(good),
        bad=bad if framework else _absolute(bad),
        framework=framework,
        repo=_absolute(repo),
        run=run,
        build=build,
        metric=metric,
        above=above,
        cause=cause,
        limit=limit,
        keep_envs=keep_envs,
        options=words,
    )
    if resume:
        if request != Request():
            raise BadInput("--resume goes on with what was asked: it takes no other option", fix="--resume OUT")
        journal = Journal.load(Path(resume).resolve())
    else:
        seconds(limit, "--limit")
        request.check()
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


def _absolute(path: str) -> str:
    return str(Path(path).absolute()) if path else ""
