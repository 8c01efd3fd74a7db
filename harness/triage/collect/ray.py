"""A Ray cluster's actors and tasks, and its processes on other nodes; every question goes through a program that can be
given up on, so that a wedged Ray never blocks the collector.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from harness.triage.collect import bounded, proc, redact, roles
from harness.triage.evidence import RayActor, RayTask

ROOT = Path(__file__).resolve().parents[3]


@dataclass(frozen=True)
class Cluster:
    """What a cluster says of itself. `drivers`: pids of live drivers. `classes`: (host, pid) -> class of the actor."""

    actors: tuple[RayActor, ...] = ()
    tasks: tuple[RayTask, ...] = ()
    hosts: tuple[str, ...] = ()  # of live nodes
    drivers: tuple[int, ...] = ()
    classes: Mapping[tuple[str, int], str] = field(default_factory=dict)
    note: str = ""

    @cached_property
    def deaths(self) -> dict[tuple[str, int], str]:
        """(host, pid) -> why the first actor there died; empty where it lives."""
        return {(one.host, one.pid): one.death for one in reversed(self.actors)}


def state(address: str, *, timeout_s: float) -> Cluster:
    """Actors, tasks, nodes and drivers of the cluster whose GCS is at `address`; a note where it does not answer."""
    try:
        return _cluster(json.loads(_run("ray_state", [address], timeout_s)))
    except _Failed as error:
        return Cluster(note=f"no Ray state from {address}: {error}")
    except (ValueError, KeyError, TypeError) as error:
        return Cluster(note=f"no Ray state from {address}: its answer cannot be read ({type(error).__name__})")


def other_nodes(address: str, out: Path, *, here: str, timeout_s: float, options: Mapping[str, Any]) -> list[str]:
    """Collect on every live node but this host, one Ray task a node, into `out` as `<node>.zip`; what to note.

    `options`: keyword arguments of `collect` there. `here`: empty to ask this host's nodes too.
    """
    given = json.dumps({"out": str(out), "here": here, "timeout_s": timeout_s - 1.0, "options": dict(options)})
    try:
        notes: list[str] = json.loads(_run("ray_nodes", [address, given], timeout_s))["notes"]
    except _Failed as error:
        return [f"no evidence from the cluster's other nodes: {error}"]
    return notes


def local_raylets(address: str = "") -> dict[int, str]:
    """pid -> GCS address of the raylets on this host, those of one cluster where `address` names it."""
    found = {pid: roles.raylet_address(proc.arguments(pid)) for pid in proc.parents()}
    return {pid: where for pid, where in found.items() if where and address in ("", "auto", where)}


class _Failed(Exception):
    """The program gave no answer; the message says why, in words that follow a colon."""


def _run(module: str, arguments: list[str], timeout_s: float) -> str:
    """What a program beside this module printed. Raises _Failed."""
    # An empty or a relative entry is the current folder, which is anybody's.
    given = [one for one in os.environ.get("PYTHONPATH", "").split(os.pathsep) if os.path.isabs(one)]
    path = os.pathsep.join((str(ROOT), *given))
    env = {**os.environ, "PYTHONPATH": path, "RAY_BACKEND_LOG_LEVEL": "fatal", "RAY_USAGE_STATS_ENABLED": "0"}
    env.pop("RLHF_HARNESS_WATCH", None)  # the collector is no member of the job
    try:
        done = bounded.run([sys.executable, "-P", "-m", f"{__package__}.{module}", *arguments], timeout_s, env=env)
    except OSError as error:
        raise _Failed(f"{sys.executable} cannot be run: {error.strerror}") from error
    if done.code is None:
        raise _Failed(f"no answer within {timeout_s:.1f} s")
    if done.code:
        said = [line.strip() for line in done.err.splitlines() if line.strip()]
        raise _Failed(redact.text(said[-1], 300) if said else f"exit code {done.code}")
    return done.out


def _cluster(said: dict[str, Any]) -> Cluster:
    actors = tuple(
        RayActor(one["actor_id"], one["name"], one["state"], one["host"], one["pid"], redact.text(one["death"]))
        for one in said["actors"]
    )
    tasks = tuple(RayTask(**{**one, "error": redact.text(one["error"])}) for one in said["tasks"])
    classes = {(one["host"], one["pid"]): one["class"] for one in said["actors"] if one["pid"]}
    hosts = tuple(dict.fromkeys(node["host"] for node in said["nodes"] if node["alive"]))
    drivers = tuple(one["pid"] for one in said["drivers"].values() if not one["dead"])
    return Cluster(actors, tasks, hosts, drivers, classes)
