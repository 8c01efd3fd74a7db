"""dstack: a task, and the script that it runs on each node."""

from __future__ import annotations

from pathlib import Path

import typer

from harness.launchers import _job, _manifest, _node

CHECKED = "dstack 0.22.5"


def command(
    context: typer.Context,
    words: _job.Words,
    nodes: _job.Nodes = 1,
    time: _node.Time = "",
    shared: _node.Shared = "",
    ray: _node.Ray = False,
    stall: _job.Stall = _job.STALL,
    setup: _job.Setup = "",
    doctor: _job.Doctor = "",
    early: _job.Early = _job.EARLY_S,
    record: _job.Record = False,
    name: _job.Name = "",
    base: _manifest.Base = None,
    out: _job.Out = Path("."),
) -> None:
    """Write a task of dstack.

    On each node it runs harness doctor before the start; it runs the command under harness watch and ends it when it
    hangs (exit code 86); before max_duration it takes evidence. $DSTACK_..., $NODE_RANK, $MASTER_ADDR and $MASTER_PORT
    in the command are those of the job. The task was held against dstack's own schema, not run.
    """
    from harness.launchers import write

    variables = r"DSTACK_\w+|NODE_RANK|MASTER_ADDR|MASTER_PORT"
    _node.refuse_relative("--shared", shared)
    job = _job.Job(words, stall, setup, doctor, early, record, name, variables)
    limit = _node.limit_s(time, early)
    head = _node.head(_VARIABLES, nodes=nodes, shared=shared, early=early, limit=limit, ray=setup if ray else None)
    own, script = _manifest.load(base), f"{job.title}.dstack.sh"
    task = {
        **own,
        "type": "task",
        **({"nodes": nodes} if nodes > 1 else {}),
        "files": [*_manifest.part(own, "files", list, base), f"./{script}:/tmp/{script}"],
        "commands": [f"bash /tmp/{script}"],
        **({"max_duration": f"{limit:.0f}s"} if limit else {}),
    }
    files = {script: job.script(head), f"{job.title}.dstack.yml": _manifest.text(task, CHECKED)}
    write(files, out, _job.command_line(context))


_VARIABLES = """\
[ "${DSTACK_RUN_NAME:-}" ] || refuse 2 "no dstack runs this script; fix: dstack apply -f ${0%.sh}.yml"
NODES=${DSTACK_NODES_NUM:-1} NODE_RANK=${DSTACK_NODE_RANK:-0} RUN_ID=$DSTACK_RUN_NAME RECOVERS=1
export NODE_RANK MASTER_ADDR=${DSTACK_MASTER_NODE_IP:-127.0.0.1} MASTER_PORT=${MASTER_PORT:-29500}
"""
