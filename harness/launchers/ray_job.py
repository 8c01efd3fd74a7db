"""Ray jobs: a script that submits itself to a cluster, where it checks every node first and then watches the
command.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import Annotated

import typer

from harness.command_options import of_options
from harness.errors import BadInput
from harness.launchers import _job, _node, write
from harness.launchers._templates import rendered


@dataclass(frozen=True)
class Options(_job.JobOptions):
    """The options of `harness render ray-job`."""

    words: Annotated[list[str], typer.Argument(metavar="COMMAND...", help="the job's command, run on the head")]
    address: Annotated[
        str,
        typer.Option(help="the address of the dashboard; default: $RAY_API_SERVER_ADDRESS or http://127.0.0.1:8265"),
    ] = ""
    submit: Annotated[
        list[str] | None,
        typer.Option(help="another option for ray job submit, such as --entrypoint-num-cpus=1; may be repeated"),
    ] = None
    results: Annotated[str, typer.Option(help="a directory on the cluster for recordings and evidence")] = "/tmp"
    time: _node.Time = ""


@of_options
def command(context: typer.Context, options: Options) -> None:
    """Write a script that submits a job to a Ray cluster, and waits for it.

    In the cluster it runs harness doctor on every node before the start; it runs the command under harness watch and
    ends it when it hangs (exit code 86); before the time limit, and on SIGUSR1, it takes evidence. Its folder is the
    job's working directory.

    \b
    Example:
      harness render ray-job --address http://head:8265 -- python train.py
    """
    wrong = next(
        (option for option in options.submit or () if not re.fullmatch(r"--[a-z][a-z-]*(=.*)?", option, re.S)), None
    )
    if wrong is not None:
        raise BadInput(
            f"{wrong!r} is no option of ray job submit", fix="--submit=--entrypoint-num-cpus=1", instead=wrong
        )
    # `ray://` and bare addresses belong to other clients of Ray; the jobs API fails with them.
    if options.address and not re.match("https?://", options.address):
        raise BadInput(
            f"--address {options.address}: jobs are submitted to the dashboard, by HTTP",
            fix="--address http://HEAD:8265",
        )
    _node.refuse_relative("--results", options.results, "/tmp")
    file = f"{options.title}.ray-job.sh"
    to = shlex.quote(options.address) if options.address else '"${RAY_API_SERVER_ADDRESS:-http://127.0.0.1:8265}"'
    submitting = rendered("ray_job.sh", address=to, submit=shlex.join(options.submit or ()), file=file)
    limit = _node.limit_s(context, options.time, options.early)
    script = _node.script(options, submitting, nodes=1, shared=options.results, limit=limit, doctor=_node.IN_A_RAY_JOB)
    write({file: script}, options.out, _job.command_line(context), recreate=options.recreate)
