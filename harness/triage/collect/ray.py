"""A Ray cluster's actors and tasks, and the processes on its other nodes.

Every question goes through a program that can be given up on, so that a wedged Ray never blocks the collector.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from harness.triage.collect import bounded, proc, redact, roles
from harness.triage.evidence import RayActor, RayGroup, RayNode, RayTask, Resources
from probes.identity import WATCH
from scenarios.ports import refused

CONNECT_S = 2.0  # longer than one lost SYN, which the kernel sends again after 1 s (RFC 6298)
ROOT = Path(__file__).resolve().parents[3]
# The job's own Python and Ray ask for the state. They may be older than the harness's, or the only ones here. So no
# package of the harness is imported, and the current folder, in which anybody may have put modules, is taken off the
# path.
_STATE = (
    "-c",
    "import sys; del sys.path[0]; import runpy; "
    f"runpy.run_path({str(ROOT / 'harness/cluster/ray_token.py')!r})['authenticate'](); "
    f"runpy.run_path({str(ROOT / 'harness/triage/collect/ray_state.py')!r}, run_name='__main__')",
)
_NODES = ("-P", "-m", f"{__package__}.ray_nodes")


@dataclass(frozen=True)
class Cluster:
    """What a cluster says about itself.

    `drivers`: (host, pid) of live drivers; the host is empty if no node has the driver's address. `classes`: (host,
    pid) -> class of the actor there.
    """

    actors: tuple[RayActor, ...] = ()
    tasks: tuple[RayTask, ...] = ()
    nodes: tuple[RayNode, ...] = ()
    drivers: tuple[tuple[str, int], ...] = ()
    classes: Mapping[tuple[str, int], str] = field(default_factory=dict)
    note: str = ""
    lost: str = ""  # its address, and why it accepts no connection
    groups: tuple[RayGroup, ...] = ()
    fixed: bool = False  # no autoscaler adds nodes

    @cached_property
    def deaths(self) -> dict[tuple[str, int], str]:
        """(host, pid) -> why the first actor there died; empty if it lives."""
        return {(actor.host, actor.pid): actor.death for actor in reversed(self.actors)}


def state(address: str, *, timeout_s: float) -> Cluster:
    """Actors, tasks, nodes and drivers of the cluster whose GCS is at `address`; a note if it does not answer."""
    try:
        return _cluster(json.loads(_run(interpreter(address), _STATE, [address], timeout_s)))
    except _Failed as error:
        return Cluster(note=f"no Ray state from {address}: {error}", lost=_unreachable(address))
    except (ValueError, KeyError, TypeError) as error:
        return Cluster(note=f"no Ray state from {address}: its answer cannot be read ({type(error).__name__})")


def _unreachable(address: str) -> str:
    """The address with the reason why it accepts no connection; empty if it accepts one or names no port."""
    host, _, port = address.rpartition(":")
    why = refused(host, int(port), CONNECT_S) if port.isdigit() else ""
    return f"{address} ({why})" if why else ""


def other_nodes(address: str, out: Path, *, here: str, timeout_s: float, options: Mapping[str, Any]) -> dict[str, str]:
    """Collect on every live node except this host, one Ray task per node, into `out` as `<node>.zip`.

    Returns host -> why it sent nothing; the host "" stands for all nodes. `options`: keyword arguments of `collect`
    there. `here`: empty to ask this host's nodes too.
    """
    request = json.dumps({"out": str(out), "here": here, "timeout_s": timeout_s - 1.0, "options": dict(options)})
    try:
        silent: dict[str, str] = json.loads(_run(sys.executable, _NODES, [address, request], timeout_s))["silent"]
    except _Failed as error:
        return {"": str(error)}
    return silent


def local_raylets(address: str = "") -> dict[int, str]:
    """Pid -> GCS address of the raylets on this host; only those of one cluster if `address` names it."""
    addresses = {pid: roles.raylet_address(proc.arguments(pid)) for pid in proc.parents()}
    return {pid: where for pid, where in addresses.items() if where and address in ("", "auto", where)}


def interpreter(address: str) -> str:
    """The Python with which the raylet on this host starts workers; our own if there is no raylet.

    A raylet of another user is skipped: root would run whatever that user put there.
    """
    for pid in local_raylets(address):
        [command] = [
            argument for argument in proc.arguments(pid) if argument.startswith("--python_worker_command=")
        ] or [""]
        python = (shlex.split(command.partition("=")[2]) or [""])[0]
        try:
            if os.path.isabs(python) and os.access(python, os.X_OK) and os.stat(f"/proc/{pid}").st_uid == os.geteuid():
                return python
        except OSError:  # it has ended
            continue
    return sys.executable


class _Failed(Exception):
    """The program gave no answer. The message says why, in words that follow a colon."""


def _run(python: str, program: tuple[str, ...], arguments: list[str], timeout_s: float) -> str:
    """Return what a program beside this module printed. Raises _Failed."""
    # An empty or relative entry means the current folder, in which anybody may have put modules.
    path_entries = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if os.path.isabs(entry)]
    path = os.pathsep.join((str(ROOT), *path_entries) if program == _NODES else path_entries)
    env = {**os.environ, "PYTHONPATH": path, "RAY_BACKEND_LOG_LEVEL": "fatal", "RAY_USAGE_STATS_ENABLED": "0"}
    env.pop(WATCH, None)  # the collector is no process of the job
    try:
        done = bounded.run([python, *program, *arguments], timeout_s, env=env)
    except OSError as error:
        raise _Failed(f"{python} cannot be run: {error.strerror}") from error
    if done.code is None:
        raise _Failed(f"no answer within {timeout_s:.1f} s")
    if done.code:
        error_lines = [line.strip() for line in done.err.splitlines() if line.strip()]
        if error_lines and error_lines[-1] == "ModuleNotFoundError: No module named 'ray'":
            raise _Failed(f"{python} has no Ray; run `harness triage` as the job's user on each of its nodes")
        raise _Failed(redact.text(error_lines[-1], 300) if error_lines else f"exit code {done.code}")
    return done.out


def _cluster(raw_state: dict[str, Any]) -> Cluster:
    actors = tuple(
        RayActor(
            actor_id=actor["actor_id"],
            name=actor["name"],
            state=actor["state"],
            host=actor["host"],
            pid=actor["pid"],
            death=redact.text(actor["death"]),
            resources=_resources(actor["resources"]),
        )
        for actor in raw_state["actors"]
    )
    tasks = tuple(
        RayTask(**{**task, "error": redact.text(task["error"]), "resources": _resources(task["resources"])})
        for task in raw_state["tasks"]
    )
    classes = {(actor["host"], actor["pid"]): actor["class"] for actor in raw_state["actors"] if actor["pid"]}
    nodes = tuple(
        RayNode(
            node["host"],
            node["alive"],
            redact.text(node["death"]),
            total=_resources(node["total"]),
            free=_resources(node["free"]),
        )
        for node in raw_state["nodes"]
    )
    groups = tuple(
        RayGroup(**{**group, "bundles": tuple(map(_resources, group["bundles"]))}) for group in raw_state["groups"]
    )
    drivers = tuple((driver["host"], driver["pid"]) for driver in raw_state["drivers"].values() if not driver["dead"])
    return Cluster(actors, tasks, nodes, drivers, classes, groups=groups, fixed=bool(raw_state["fixed"]))


def _resources(pairs: list[list[Any]]) -> Resources:
    return tuple((str(name), float(amount)) for name, amount in pairs)
