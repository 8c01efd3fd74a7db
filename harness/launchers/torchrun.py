"""torchrun: a script to run once on each node, by hand or by a job starter."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from harness.command_options import of_options
from harness.errors import BadInput
from harness.launchers import _job, _node, write
from harness.launchers._templates import rendered

# Options of torchrun, torch 2.13, that take no value.
FLAGS = frozenset({"standalone", "no-python", "run-path", "virtual-local-rank", "m", "module"})


@dataclass(frozen=True)
class Options(_job.JobOptions):
    """The options of `harness render torchrun`."""

    words: Annotated[
        list[str], typer.Argument(metavar="COMMAND...", help="the command of each rank, such as python train.py")
    ]
    nodes: _job.Nodes = 1
    nproc_per_node: Annotated[str, typer.Option(help="ranks on each node: a number, auto, gpu or cpu")] = "auto"
    time: _node.Time = ""
    shared: _node.Shared = ""


@of_options
def command(context: typer.Context, options: Options) -> None:
    """Write a script that runs torchrun on a node; run it on each.

    Before the start it runs harness doctor; it runs torchrun under harness watch and ends it when it hangs (exit code
    86); before the time limit, and on SIGUSR1, it takes evidence. With several nodes, NODE_RANK, MASTER_ADDR and
    RUN_ID are asked of the environment; nodes that share no folder are looked at together where it has NODE_ADDRS, the
    addresses of all, and RLHF_HARNESS_TOKEN.

    \b
    Example:
      harness render torchrun --nproc-per-node 8 -- python train.py
    """
    if Path(options.words[0]).name == "torchrun" or options.words[1:3] == ["-m", "torch.distributed.run"]:
        raise BadInput("the script runs torchrun itself", fix=_without_torchrun(options.words))
    _node.refuse_relative("--shared", options.shared)
    meeting = (
        '--node-rank "$NODE_RANK" --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT"'
        if options.nodes > 1
        else "--standalone"
    )
    if options.nproc_per_node not in ("auto", "gpu", "cpu") and not re.fullmatch(r"[1-9]\d*", options.nproc_per_node):
        raise BadInput(
            f"--nproc-per-node {options.nproc_per_node}: a number of ranks, auto, gpu or cpu", fix="--nproc-per-node 8"
        )
    ranks = shlex.quote(options.nproc_per_node)
    torchrun = f"torchrun --nnodes {options.nodes} --nproc-per-node {ranks} {meeting} --no-python"
    variables = rendered("torchrun_nodes.sh" if options.nodes > 1 else "torchrun_one_node.sh", nodes=options.nodes)
    limit = _node.limit_s(context, options.time, options.early)
    script = _node.script(
        options, variables, nodes=options.nodes, shared=options.shared, limit=limit, launcher=torchrun
    )
    write({f"{options.title}.torchrun.sh": script}, options.out, _job.command_line(context), recreate=options.recreate)


def _without_torchrun(words: Sequence[str]) -> str:
    """The options of this launcher and the command of each rank that stand for a command of torchrun."""
    rest = list(words[1:] if Path(words[0]).name == "torchrun" else words[3:])
    of_torchrun: dict[str, str] = {}
    while rest and rest[0].startswith("-"):
        name, equals, value = rest.pop(0).lstrip("-").partition("=")
        name = name.replace("_", "-")
        of_torchrun[name] = value if equals or name in FLAGS or not rest else rest.pop(0)
    python = ["python", "-m"] if of_torchrun.keys() & {"m", "module"} else ["python"]
    if "no-python" in of_torchrun:
        python = []
    rank = [*python, *rest] if rest else ["python", "train.py"]
    options = []
    if of_torchrun.get("nnodes", "").isdigit():
        options += ["--nodes", of_torchrun["nnodes"]]
    if "nproc-per-node" in of_torchrun:
        options += ["--nproc-per-node", of_torchrun["nproc-per-node"]]
    return shlex.join([*options, "--", *rank])
