"""The options of `harness bisect`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from harness import completion
from harness.command_options import option


@dataclass(frozen=True)
class BisectOptions:
    """What is bisected, and how. `options` holds the arguments after `--`."""

    what: Annotated[
        str,
        typer.Argument(
            help="ENGINE@GOOD..BAD to search releases, or commits with --repo; GOOD..BAD to search commits with --run; "
            "a backend to search settings with --good and --bad, by default the recorded one or hf",
            show_default=False,
            autocompletion=completion.engines,
        ),
    ] = ""
    options: Annotated[
        tuple[str, ...],
        typer.Argument(help="after --: options for each comparison, as harness parity or harness run takes them"),
    ] = option((), parameter=list[str], read=tuple)
    against: Annotated[
        str,
        typer.Option(
            help="the backend that is the baseline of each comparison",
            show_default=False,
            autocompletion=completion.engines,
        ),
    ] = ""
    good: Annotated[
        str,
        typer.Option(
            help="the good end of a search over settings: a scenario (.toml) or a run directory", show_default=False
        ),
    ] = ""
    bad: Annotated[
        str,
        typer.Option(
            help="the bad end of a search over settings: a scenario (.toml) or a run directory", show_default=False
        ),
    ] = ""
    framework: Annotated[
        str,
        typer.Option(
            help="the ends are two commands of jobs of this framework, each in quotes; auto: found from them",
            show_default=False,
        ),
    ] = ""
    repo: Annotated[str, typer.Option(help="search the commits of this git repository", show_default=False)] = ""
    run: Annotated[
        str,
        typer.Option(
            help="a command to run in a checkout of each commit; it exits with 0 if the commit is good, 125 to skip "
            "it, else up to 127 if it is bad",
            show_default=False,
        ),
    ] = ""
    build: Annotated[
        str,
        typer.Option(
            help="a command to run in a checkout of each commit, which installs it for $HARNESS_BISECT_PYTHON; "
            "default: uv pip install",
            show_default=False,
        ),
    ] = ""
    metric: Annotated[
        str,
        typer.Option(
            help="call a comparison bad if this metric is above --above, whatever its verdict", show_default=False
        ),
    ] = ""
    above: Annotated[float | None, typer.Option(help="the bound for --metric", show_default=False)] = None
    cause: Annotated[str, typer.Option(help="call a comparison bad if this cause is found", show_default=False)] = ""
    limit: Annotated[str, typer.Option(help="skip a comparison that takes longer than this")] = "30m"
    keep_envs: Annotated[int, typer.Option(help="how many environments to keep at a time", min=1)] = 3
