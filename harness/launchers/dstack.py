"""dstack: a task, and the script that it runs on each node."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from harness.command_options import of_options
from harness.launchers import _job, _manifest, _node, write
from harness.launchers._templates import rendered
from harness.triage.remote import token

CHECKED = "dstack 0.22.5"


@dataclass(frozen=True)
class Options(_job.JobOptions):
    """The options of `harness render dstack`."""

    VARIABLES = r"DSTACK_\w+|NODE_RANK|MASTER_ADDR|MASTER_PORT"
    nodes: _job.Nodes = 1
    time: _node.Time = ""
    shared: _node.Shared = ""
    ray: _node.Ray = False
    base: _manifest.Base = None


@of_options
def command(context: typer.Context, options: Options) -> None:
    """Write a task of dstack.

    On each node it runs harness doctor before the start; it runs the command under harness watch and ends it when it
    hangs (exit code 86); before max_duration it takes evidence. $DSTACK_..., $NODE_RANK, $MASTER_ADDR and $MASTER_PORT
    in the command are those of the job. The task was held against dstack's own schema, not run.

    \b
    Example:
      harness render dstack --base gpus.yml --nodes 2 --time 12h -- python train.py
    """
    _node.refuse_relative("--shared", options.shared)
    limit = _node.limit_s(context, options.time, options.early)
    base_manifest, file = _manifest.load(options.base), f"{options.title}.dstack.sh"
    task = {
        **base_manifest,
        "type": "task",
        **({"nodes": options.nodes} if options.nodes > 1 else {}),
        "files": [*_manifest.part(base_manifest, "files", list, options.base), f"./{file}:/tmp/{file}"],
        "commands": [f"bash /tmp/{file}"],
        **({"max_duration": f"{limit:.0f}s"} if limit else {}),
    }
    if _node.are_served(options, options.nodes, options.shared, options.ray):
        task["env"] = _with_token(base_manifest, options.base)
    script = _node.script(
        options, rendered("dstack.sh"), nodes=options.nodes, shared=options.shared, limit=limit, ray=options.ray
    )
    write(
        {file: script, f"{options.title}.dstack.yml": _manifest.text(task, CHECKED)},
        options.out,
        _job.command_line(context),
        recreate=options.recreate,
    )


def _with_token(manifest: dict[str, Any], base: Path | None) -> list[str]:
    """Return the variables of the task, with the token. A variable without a value is taken from the shell that runs
    dstack.
    """
    variables = manifest.get("env")
    if isinstance(variables, dict):
        variables = [f"{name}={value}" for name, value in variables.items()]
    env: list[str] = _manifest.part({"env": variables}, "env", list, base)
    return env if token.VARIABLE in {name.partition("=")[0] for name in env} else [*env, token.VARIABLE]
