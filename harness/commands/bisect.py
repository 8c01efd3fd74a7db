"""`harness bisect`: which release, commit or setting made a comparison bad?"""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Annotated

import typer

from harness.commands.options import seconds
from harness.commands.showing import format_option, say, show


def bisect(
    what: Annotated[
        str,
        typer.Argument(
            help="engine@GOOD..BAD, of releases, or of commits with --repo; GOOD..BAD, of commits with --run; over "
            "settings the backend, by default the recorded one or hf",
            show_default=False,
        ),
    ] = "",
    options: Annotated[
        list[str] | None, typer.Argument(help="after --: options of `harness parity`, or of `harness run`")
    ] = None,
    against: Annotated[
        str, typer.Option(help="the other backend, the baseline of each comparison", show_default=False)
    ] = "",
    good: Annotated[str, typer.Option(help="a scenario (.toml) or a run directory", show_default=False)] = "",
    bad: Annotated[str, typer.Option(help="the one that is searched for what matters", show_default=False)] = "",
    repo: Annotated[str, typer.Option(help="search the commits of this git repository", show_default=False)] = "",
    run: Annotated[
        str,
        typer.Option(help="in a checkout of each commit; 0: good, 125: skip, 1 to 127: bad", show_default=False),
    ] = "",
    build: Annotated[
        str,
        typer.Option(
            help="in a checkout of each commit: installs it for $HARNESS_BISECT_PYTHON; default: uv pip install",
            show_default=False,
        ),
    ] = "",
    metric: Annotated[
        str, typer.Option(help="bad where this metric is above --above, whatever the verdict", show_default=False)
    ] = "",
    above: Annotated[float | None, typer.Option(help="the bound of --metric", show_default=False)] = None,
    cause: Annotated[str, typer.Option(help="bad where this cause is found", show_default=False)] = "",
    limit: Annotated[str, typer.Option(help="the longest that one comparison may take; it is skipped then")] = "30m",
    keep_envs: Annotated[int, typer.Option(help="environments that it makes and keeps at a time", min=1)] = 3,
    out: Annotated[
        str, typer.Option(help="its directory; the same command goes on there; default: a new one under runs/")
    ] = "",
    resume: Annotated[str, typer.Option(help="go on with the search in this directory", show_default=False)] = "",
    format: Annotated[str, format_option("bisect")] = "text",
) -> None:
    """Find the release, the commit or the smallest set of settings that made a comparison bad.

    Exits 0 when it is found, 3 when the comparisons do not tell.
    """
    import reports
    from harness.bisect import commits, releases, settings
    from harness.bisect.journal import Journal
    from harness.bisect.judging import Judge
    from harness.bisect.request import Request
    from harness.bisect.search import Search
    from harness.errors import BadInput, HarnessError
    from probes.files import write_whole

    words = tuple(options or ())
    if what.startswith("-"):  # there was no WHAT before --
        what, words = "", (what, *words)
    request = Request(
        what, against, _absolute(good), _absolute(bad), _absolute(repo), run, build, metric, above, cause, limit,
        keep_envs, words,
    )  # fmt: skip
    if resume:
        if request != Request():
            raise BadInput("--resume goes on with what was asked: it takes no other option", fix="--resume OUT")
        journal = Journal.load(Path(resume).resolve())
    else:
        seconds(limit, "--limit")
        request.check()
        stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
        journal = Journal.begin(Path(out or f"runs/bisect-{stamp}").resolve(), request)
    search = Search(journal, Judge(journal.request), say)
    over = {"releases": releases.bisect, "settings": settings.bisect, "commits": commits.bisect}
    try:
        found = over[journal.request.over](search)
        write_whole(journal.folder / "bisect.json", reports.render(found, "json").encode())
    except HarnessError:
        if journal.steps:
            say(f"harness bisect --resume {journal.folder} goes on")
        raise
    except KeyboardInterrupt as error:
        error.add_note(f"harness bisect --resume {journal.folder} goes on")
        raise
    finally:
        journal.close()
    show(found, format)


def _absolute(path: str) -> str:
    return str(Path(path).absolute()) if path else ""
