"""The head of a script that runs once on each node, for schedulers that cannot run a function on all nodes.

Nodes with a shared folder coordinate in it: no node starts before the doctor has passed on all of them, and they are
judged together. Nodes without one are judged together where each knows the addresses of all. Then each watch serves
its evidence, and the first node requests it and notifies the other watches of a hang.
"""

from __future__ import annotations

import math
import shlex
from typing import Annotated

import typer

from harness.commands.typed_options import refuse_idle
from harness.errors import BadInput
from harness.launchers import _job
from harness.launchers._templates import rendered
from harness.quantities import seconds

# The option of harness doctor. Ray sets the variable for a job, and the doctor queries a worker on each node.
IN_A_RAY_JOB = '--address "$RAY_ADDRESS"'

# The options of harness watch on nodes without a shared folder. WATCHES has a line for each node: its name and the
# address at which its watch serves.
SERVE = '${WATCHES:+--serve "$(address)" --serve-after 1s}'

Shared = Annotated[
    str,
    typer.Option(
        help="a directory that all nodes can write: no node starts before harness doctor has passed on all, and "
        "all are looked at together; default: each node keeps its evidence where its script runs, and gives it to the "
        "first one where all addresses and a token are known"
    ),
]
Ray = Annotated[
    bool,
    typer.Option("--ray", help="start Ray on all nodes, then run the command on the first one when all have joined"),
]
Time = Annotated[str, typer.Option(help="the time limit, 90m or 12h; evidence is taken before it")]


def limit_s(context: typer.Context, time: str, early: int) -> float:
    """The time limit in seconds, 0 for none. Raises BadInput where evidence would be taken before the start, and for
    --early without a limit.
    """
    if not time:
        refuse_idle(context, ["early"], "there is no time limit without --time", "--time 12h")
    limit = seconds(time, "--time") if time else 0.0
    refuse_early(time, limit, early)
    return limit


def refuse_early(time: str, limit: float, early: int, minutes: str = "m") -> None:
    """Raises BadInput where evidence would be taken before the start. `limit`: `time` in seconds; `minutes`: what
    --time writes behind a number of them."""
    if time and limit <= early:
        less = max(1, min(60, int(limit) // 2))
        longer = f"--time {math.ceil(2 * early / 60)}{minutes}"
        raise BadInput(
            f"--time {time} is over before its last {early} s begin",
            fix=f"--early {less}   # or {longer}" if less < limit else longer,
        )


def refuse_relative(option: str, folder: str, fix: str = "/SHARED") -> None:
    """Raises BadInput for a folder that is not the same where the script runs. No shell expands it either."""
    if folder and not folder.startswith("/"):
        raise BadInput(f"{option} {folder} is not the same on every node", fix=f"{option} {fix}")


def script(
    job: _job.JobOptions, variables: str, *, nodes: int, shared: str, limit: float, ray: bool = False, **words: str
) -> str:
    """Return the script of `job`.

    variables: lines of shell that set NODES, NODE_RANK, RUN_ID, what else the command needs, and NODE_ADDRS where the
    nodes' addresses are known. They may refuse to run.
    ray: the command runs on the first node, in a Ray cluster of all nodes.
    words: further arguments of `JobOptions.script`.
    """
    after = f"{limit - job.early:.0f}" if limit else ""
    start = f"{on_ray(job.setup)}start() {{ ray_node; }}\n" if ray else "start() { job; }\n"
    served = are_served(job, nodes, shared, ray)
    ranks = f"NODE_RANK from 0 to {nodes - 1}" if nodes > 1 else "NODE_RANK=0"
    head = rendered(
        "node.sh",
        nodes=nodes,
        ranks=ranks,
        shared=shlex.quote(shared),
        after=after,
        served_functions=rendered("served_watches.sh").rstrip() if served else "",
    )
    token = rendered("token.sh").rstrip("\n") if served else ""  # --setup, which comes before it, may set the token
    return job.script(variables + head + start, watch=SERVE if served else "", before=token, **words)


def are_served(job: _job.JobOptions, nodes: int, shared: str, ray: bool = False) -> bool:
    """Whether the watches serve their evidence.

    They do not where it is not needed: with one node, with a shared folder, and with a Ray cluster, whose first node
    sees all. `harness record` cannot serve evidence.
    """
    return nodes > 1 and not shared and not ray and not job.record


def on_ray(setup: str) -> str:
    """Return lines of shell that define `ray_node`: it runs a node of a Ray cluster, and on the first node the job in
    it.
    """
    return rendered("ray_node.sh", setup=_job.prepared(setup))
