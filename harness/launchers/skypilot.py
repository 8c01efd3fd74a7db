"""SkyPilot: a task, and the script that it runs on each node."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from harness.command_options import of_options
from harness.launchers import _job, _manifest, _node, write
from harness.launchers._templates import rendered
from harness.triage.remote import token

CHECKED = "skypilot 0.14.1"


@dataclass(frozen=True)
class Options(_job.JobOptions):
    """The options of `harness render skypilot`."""

    VARIABLES = r"SKYPILOT_\w+|NODE_RANK|MASTER_ADDR|MASTER_PORT"
    nodes: _job.Nodes = 1
    autostop: Annotated[
        int, typer.Option(min=0, help="stop the cluster after this many minutes without a job; 0: never")
    ] = 0
    time: _node.Time = ""
    shared: _node.Shared = ""
    ray: _node.Ray = False
    base: _manifest.Base = None


@of_options
def command(context: typer.Context, options: Options) -> None:
    """Write a task of SkyPilot.

    On each node it runs harness doctor before the start; it runs the command under harness watch and ends it when it
    hangs (exit code 86); before the time limit it takes evidence. $SKYPILOT_..., $NODE_RANK, $MASTER_ADDR and
    $MASTER_PORT in the command are those of the job. The task was held against SkyPilot's own schema, not run.

    \b
    Example:
      harness render skypilot --base gpus.yaml --nodes 2 --autostop 10 -- python train.py
    """
    _node.refuse_relative("--shared", options.shared)
    limit = _node.limit_s(context, options.time, options.early)
    base_manifest, file = _manifest.load(options.base), f"{options.title}.skypilot.sh"
    resources = _manifest.part(base_manifest, "resources", dict, options.base)
    if options.autostop:
        resources["autostop"] = {"idle_minutes": options.autostop}
    task = {
        "workdir": ".",
        **base_manifest,
        "num_nodes": options.nodes,
        **({"resources": resources} if resources else {}),
        "file_mounts": {**_manifest.part(base_manifest, "file_mounts", dict, options.base), f"~/{file}": f"./{file}"},
        "run": f"bash ~/{file}\n",
    }
    if _node.are_served(options, options.nodes, options.shared, options.ray):
        task["secrets"] = _with_token(base_manifest, options.base)
    script = _node.script(
        options, rendered("skypilot.sh"), nodes=options.nodes, shared=options.shared, limit=limit, ray=options.ray
    )
    write(
        {file: script, f"{options.title}.skypilot.yaml": _manifest.text(task, CHECKED)},
        options.out,
        _job.command_line(context),
        recreate=options.recreate,
    )


def _with_token(manifest: dict[str, Any], base: Path | None) -> dict[str, Any]:
    """Return the secrets of the task, with the token. A secret without a value is that of `sky launch --secret`."""
    base_secrets = manifest.get("secrets")
    if isinstance(base_secrets, list):
        base_secrets = dict.fromkeys(base_secrets)
    secrets: dict[str, Any] = _manifest.part({"secrets": base_secrets}, "secrets", dict, base)
    named = {**secrets, **_manifest.part(manifest, "envs", dict, base)}
    return secrets if token.VARIABLE in named else {**secrets, token.VARIABLE: None}
