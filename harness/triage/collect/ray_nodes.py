"""One Ray task on each node of a cluster, which collects there and sends its part back: `python -m ...ray_nodes`.

In a process of its own for the same reason as ray_state. The tasks ask for no CPU, so a cluster that is fully taken
runs them all the same; the code that they run travels with them.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from harness.cluster.ray_output import warnings_aside
from harness.cluster.ray_start import job
from harness.cluster.ray_token import authenticate
from harness.triage import directory
from harness.triage.collect import Scope, collect


def harness_collect(options: dict[str, Any]) -> bytes:
    """The task: collect what lives below this node's raylet; a zip of the evidence directory."""
    with tempfile.TemporaryDirectory(prefix="harness-node-") as folder:
        out = Path(folder) / "evidence"
        watched = options.pop("directory", None)
        scope = Scope((os.getppid(),), Path(watched) if watched else None, "")
        collect(scope, out=out, **options)
        return directory.pack(out).read_bytes()


def main(address: str, request: dict[str, Any]) -> dict[str, Any]:
    """Ask every live node but the one called `here`; {silent: host -> why nothing came from it}."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    authenticate()
    deadline = time.monotonic() + request["timeout_s"]
    root = Path(__file__).resolve().parents[3]
    code = {"py_modules": [str(root / "harness"), str(root / "probes")]}
    ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, runtime_env=code, job_config=job())
    warnings_aside()
    silent = {}
    nodes = {
        node["NodeID"]: node["NodeManagerHostname"]
        for node in ray.nodes()
        if node["Alive"] and node["NodeManagerHostname"] != request["here"]
    }
    tasks = {}
    for node in nodes:
        place = NodeAffinitySchedulingStrategy(node_id=node, soft=False)
        decorate: Any = ray.remote  # its types know the decorator form only
        remote = decorate(num_cpus=0, max_retries=0, scheduling_strategy=place)(harness_collect)
        tasks[remote.remote(request["options"])] = node
    pending_refs = list(tasks)
    while pending_refs and (seconds := deadline - time.monotonic()) > 0:
        done, pending_refs = ray.wait(pending_refs, timeout=seconds)
        for ref in done:
            try:
                (Path(request["out"]) / f"{tasks[ref]}.zip").write_bytes(ray.get(ref))
            except Exception as error:  # Ray wraps what went wrong there in one of many types; all mean: no part
                error_lines = str(error).strip().splitlines()
                silent[nodes[tasks[ref]]] = error_lines[-1] if error_lines else type(error).__name__
    return {"silent": {**silent, **{nodes[tasks[pending_ref]]: "no answer in time" for pending_ref in pending_refs}}}


if __name__ == "__main__":
    answer = main(sys.argv[1], json.loads(sys.argv[2]))
    sys.stdout.write(json.dumps(answer))
    sys.stdout.flush()
    os._exit(0)  # ray.shutdown waits for tasks that were given up on
