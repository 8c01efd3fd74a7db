"""GitHub Actions: one job of the user on one runner, as a workflow and the script that it runs."""

from __future__ import annotations

import math
import shlex
from dataclasses import dataclass
from typing import Annotated

import typer

from harness.command_options import of_options
from harness.commands.typed_options import refuse_idle
from harness.launchers import _job, _manifest, _node, github, write
from harness.launchers._templates import rendered

LIMIT = f"{github.MINUTES}m"


@dataclass(frozen=True)
class Options(_job.JobOptions):
    """The options of `harness render github-job`."""

    words: Annotated[list[str], typer.Argument(metavar="COMMAND...", help="the job's command, run from the root")]
    on: Annotated[
        list[str] | None,
        typer.Option(help="an event that starts it, such as pull_request; may be repeated; default: by hand only"),
    ] = None
    at: Annotated[
        str, typer.Option(help="also start it at these times, in the syntax of cron and in UTC", show_default=False)
    ] = ""
    time: _node.Time = LIMIT
    source: github.Source = ""
    install: Annotated[
        str,
        typer.Option(
            help="the command that installs the harness on a runner; default: pip, from --source", show_default=False
        ),
    ] = ""
    runner: Annotated[str, typer.Option(help="the label of the runner")] = "ubuntu-latest"
    python: Annotated[str, typer.Option(help="the version of Python")] = "3.12"
    out: _job.Out = github.OUT


@of_options
def command(context: typer.Context, options: Options) -> None:
    """Write a GitHub workflow that runs a job.

    It runs harness doctor before the start; it runs the command under harness watch and ends it when it hangs (exit
    code 86); before the time limit it takes evidence. What the harness leaves is an artefact of the run.

    \b
    Example:
      harness render github-job --time 60m -- torchrun --nproc-per-node 2 train.py
    """
    if options.install:
        refuse_idle(context, ["source"], "--install is the whole command that installs the harness")
    limit = _node.limit_s(context, options.time, options.early)
    title, script = options.title, f"{options.title}.github-job.sh"
    minutes = math.ceil(limit / 60)
    steps = [
        *github.start(options.install or github.install(options.source), options.python),
        {"name": "Job", "timeout-minutes": minutes, "run": f"bash {shlex.quote(str(options.out / script))}"},
        github.summary(
            "harness-*/*/verdict.json", f"{_job.prepared(options.setup)}\n{rendered('github_job_summary.sh')}"
        ),
        github.upload(title, "harness-*/"),
    ]
    schedule = {"schedule": [{"cron": options.at}]} if options.at else {}
    events = {"workflow_dispatch": None, **dict.fromkeys(options.on or ())} | schedule
    workflow = github.workflow(title, events, {"job": github.job(options.runner, steps, minutes + 10)})
    text = _node.script(options, rendered("github_job.sh"), nodes=1, shared="", limit=limit)
    files = {script: text, f"{title}.yml": _manifest.text(workflow)}
    write(files, options.out, _job.command_line(context), recreate=options.recreate)
