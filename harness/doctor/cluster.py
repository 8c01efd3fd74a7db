"""Asks one Ray worker on every node for the same facts. The code is shipped by value."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import harness.doctor.gather
import probes
from harness.cluster.launch import Cluster
from harness.doctor.facts import Facts
from harness.doctor.gather import node

PATIENCE_S = 90.0  # a worker takes 1 to 2 s to start, and imports torch for up to a minute from a cold network disk


@dataclass(frozen=True)
class Found:
    """What the cluster answered. `places`: the facts of each node that answered; `silent`: node -> why it did not."""

    places: tuple[Facts, ...]
    silent: dict[str, str]
    alive: int
    dead: tuple[str, ...]


def look(address: str | None, skip: tuple[str, ...] = ()) -> Found:
    """Join the cluster (None: start a local one) and ask every node. Raises LaunchFailed if it cannot be joined."""
    with Cluster(address):
        return ask(skip)


def ask(skip: tuple[str, ...]) -> Found:
    """The facts of every node of the connected cluster, by one task without CPUs that is pinned to each node."""
    import ray
    from ray import cloudpickle
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    nodes = ray.nodes()
    alive = [node for node in nodes if node["Alive"]]
    here = ray.get_runtime_context().get_node_id()
    # by value: nodes of a user's cluster have Ray, but not the harness
    for package in (harness.doctor.gather, probes):
        cloudpickle.register_pickle_by_value(package)
    try:
        task = ray.remote(_task())
        pending = {
            task.options(
                num_cpus=0, max_retries=0,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node_id=node["NodeID"], soft=False),
            ).remote(skip): node
            for node in alive
        }  # fmt: skip
        places, silent = [], {}
        hosts = {node["NodeManagerHostname"] for node in alive}
        until = time.monotonic() + PATIENCE_S
        for answer, node in pending.items():
            name = f"worker on {node['NodeManagerHostname']}"
            if len(hosts) < len(alive):  # nodes in containers may share a host's name
                name += f" ({node['NodeManagerAddress']}, {node['NodeID'][:6]})"
            # All tasks run at once and share one deadline. A node whose answer is there by then gets its second.
            try:
                facts = ray.get(answer, timeout=max(1.0, until - time.monotonic()))
                skew, error = _skew(node["NodeID"])
                places.append(Facts.from_dict({**facts, "where": name}, shell=False, skew_s=skew, skew_error_s=error,
                                              same_host=node["NodeID"] == here))  # fmt: skip
            except Exception as error:  # Ray raises many types of error; each means that this node did not answer
                last_line = str(error).strip().splitlines()[-1] if str(error) else ""
                silent[name] = f"{type(error).__name__}: {last_line}"[:300]
    finally:
        for package in (harness.doctor.gather, probes):
            cloudpickle.unregister_pickle_by_value(package)
    dead = tuple(f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})" for node in nodes if not node["Alive"])
    return Found(tuple(places), silent, len(alive), dead)


def _task() -> Callable[..., Any]:
    """The function that a worker runs; made here so that it is pickled by value with what it uses."""

    def gather_facts(skip: tuple[str, ...]) -> Any:
        return node(skip)

    return gather_facts


def _skew(node_id: str, rounds: int = 3) -> tuple[float, float]:
    """By how many seconds the node's clock is ahead of ours, and half of the shortest round trip, which bounds the
    error."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    def read_clock() -> int:
        import time

        return time.time_ns()

    task = ray.remote(read_clock).options(
        num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node_id=node_id, soft=False)
    )
    # The node read its clock somewhere within the round trip, half way at best: the shortest trip errs least.
    best: tuple[float, float] | None = None
    for _ in range(rounds):
        began = time.time_ns()
        theirs = ray.get(task.remote(), timeout=30)
        ended = time.time_ns()
        error = (ended - began) / 2e9
        if best is None or error < best[1]:
            best = ((theirs - (began + ended) / 2) / 1e9, error)
    assert best is not None
    return best
