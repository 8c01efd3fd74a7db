"""Slurm: a batch script that checks every node first, watches the command on each, and takes evidence before the
limit.
"""

from __future__ import annotations

import math
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
    """The options of `harness render slurm`."""

    VARIABLES = r"(?:SLURM|MASTER)_\w+"
    nodes: _job.Nodes = 1
    time: Annotated[str, typer.Option(help="the time limit, as sbatch takes it")] = ""
    ray: _node.Ray = False
    local: Annotated[
        str,
        typer.Option(
            help="a directory that each node has of its own, /tmp say, for nodes that share none: each watch serves "
            "its evidence, and the first node asks for it"
        ),
    ] = ""
    sbatch: Annotated[
        list[str] | None, typer.Option(help="another option for sbatch, such as --gpus-per-node=8; may be repeated")
    ] = None


@of_options
def command(context: typer.Context, options: Options) -> None:
    """Write a batch script for Slurm.

    It runs harness doctor on every node and starts nothing where that fails; it runs the command under harness watch
    on every node and ends it when it hangs (exit code 86), also when only the evidence of all nodes together says so;
    and before the time limit it takes evidence on every node and judges it. With --ray it starts Ray on every node
    and the command on the first, in that cluster. With --local it needs no folder that all nodes can write.
    $SLURM_... and $MASTER_... in the command are those of the job.

    \b
    Example:
      harness render slurm --nodes 8 --time 12:00:00 -- torchrun --nnodes 8 train.py
    """
    _refuse(options)
    time_limit = [f"--time={options.time}"] if options.time else []
    directives = [
        f"--job-name={options.title}",
        "--output=%x-%j.log",
        f"--nodes={options.nodes}",
        "--ntasks-per-node=1",
        *time_limit,
        *(options.sbatch or []),
        f"--signal=B:USR1@{options.early}",
    ]
    served = bool(options.local) and not options.ray  # a Ray cluster's first node sees all nodes
    if options.ray:
        setup = _job.prepared(options.setup)
        start = _node.on_ray(options.setup) + rendered("slurm_ray.sh", setup=setup)
    else:
        start = rendered("slurm_every_node.sh")
    folder = shlex.quote(options.local) if options.local else '"$SLURM_SUBMIT_DIR"'
    watches = rendered("served_watches.sh") + rendered("slurm_watches.sh") if served else ""
    script = options.script(
        rendered("slurm.sh", folder=folder) + start + watches,
        directives="\n".join(f"#SBATCH {option}" for option in directives),
        watch=_node.SERVE if served else "",
    )
    write({f"{options.title}.sbatch": script}, options.out, _job.command_line(context), recreate=options.recreate)


def _refuse(options: Options) -> None:
    """Raise BadInput for options that sbatch would refuse, or that the script sets itself."""
    for option in options.sbatch or ():
        if not re.fullmatch(r"--?[A-Za-z][\w-]*(=.*)?", option):
            raise BadInput(f"{option!r} is no option of sbatch", fix="--sbatch=--gpus-per-node=8", instead=option)
    if options.local and options.record:
        raise BadInput("harness record serves no evidence", fix="leave out --record, or --local")
    for option in options.sbatch or ():
        if fix := _OWN.get(_name(option)):
            instead = option if fix.startswith("--") else ""
            raise BadInput(f"--sbatch={option}: the script sets it", fix=fix, instead=instead)
    _node.refuse_relative("--local", options.local, "/tmp")
    _node.refuse_early(options.time, _seconds(options.time), options.early, minutes="")


_OWN = {
    **dict.fromkeys(("--time", "-t"), "--time TIME"),
    **dict.fromkeys(("--nodes", "-N"), "--nodes NUMBER"),
    **dict.fromkeys(("--job-name", "-J"), "--name NAME"),
    **dict.fromkeys(("--ntasks", "-n", "--ntasks-per-node"), "let COMMAND start the ranks of a node, as torchrun does"),
    "--signal": "--early SECONDS",
}  # options of sbatch that the script sets, and what to use instead


def _name(option: str) -> str:
    return option.partition("=")[0] if option.startswith("--") else option[:2]


def _seconds(time: str) -> float:
    """A time limit as sbatch(1) has them: MINUTES[:SECONDS], H:M:S, DAYS-H[:M[:S]], UNLIMITED; 0 is none either.
    Raises BadInput."""
    if not time or time.upper() in ("UNLIMITED", "INFINITE"):
        return math.inf
    days, dash, clock = time.rpartition("-")
    parts = clock.split(":")
    if not all(part.isdecimal() for part in parts) or len(parts) > 3 or (dash and not days.isdecimal()):
        raise BadInput(
            f"--time {time} is not a time limit of sbatch", fix="--time 12:00:00   # or 90, in minutes; 2-12"
        )
    numbers = [float(part) for part in parts]
    if dash or len(numbers) == 3:
        hours, minutes, seconds = [*numbers, 0.0, 0.0][:3]
    else:
        hours, (minutes, seconds) = 0.0, [*numbers, 0.0][:2]
    return ((24 * float(days or 0) + hours) * 60 + minutes) * 60 + seconds or math.inf
