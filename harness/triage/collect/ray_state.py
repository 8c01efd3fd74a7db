"""Print actors and tasks of a Ray cluster as JSON, in a process of its own: `python ray_state.py ADDRESS`.

The job's own Python runs it, from Python 3.8 and Ray 2.9 on, so it imports only Ray and the standard library. It asks
the GCS directly and needs neither the dashboard, as Ray's state API does, nor a driver: 0.9 s in all. It is a separate
process because a wedged GCS leaves its caller waiting in C++, where nothing can interrupt it.
"""

from __future__ import annotations

import json
import re
import sys
import time
from typing import Any

MAX_TASKS = 2_000  # unfinished tasks come first, because a hang consists of those
ENDED = ("FINISHED", "FAILED", "NIL")
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def main(address: str) -> dict[str, Any]:
    """Return {actors, tasks, nodes, drivers, groups, fixed} as plain data."""
    import ray._raylet as _raylet
    from ray.core.generated import gcs_pb2 as _gcs

    gcs: Any = _gcs  # generated, and without types
    raylet: Any = _raylet
    accessor = raylet.GlobalStateAccessor(_options(raylet.GcsClientOptions, address))
    if not accessor.connect():
        raise ConnectionError("the GCS refused the connection")
    table = accessor.get_node_table()
    free = {}
    for row in accessor.get_all_available_resources():
        available = gcs.AvailableResources.FromString(row)
        free[available.node_id.hex()] = _resources(available.resources_available)
    hosts = {node["NodeID"]: node["NodeManagerHostname"] for node in table}
    at = {node["NodeManagerAddress"]: node["NodeManagerHostname"] for node in table}
    nodes = [
        {"id": node["NodeID"], "host": node["NodeManagerHostname"], "alive": node["Alive"],
         "death": str(node.get("DeathReasonMessage") or ""),
         "total": _resources(node.get("Resources") or {}), "free": free.get(node["NodeID"], [])}
        for node in table
    ]  # fmt: skip
    drivers = {}
    for row in _jobs(accessor):
        job = gcs.JobTableData.FromString(row)
        drivers[job.job_id.hex()] = {
            "pid": job.driver_pid, "dead": job.is_dead, "host": at.get(job.driver_ip_address, ""),
            "command": str(getattr(job, "entrypoint", "")),
        }  # fmt: skip
    actors = [_actor(gcs.ActorTableData.FromString(row), hosts) for row in accessor.get_actor_table(None, None)]
    events = [gcs.TaskEvents.FromString(row) for row in accessor.get_task_events()]
    groups = [gcs.PlacementGroupTableData.FromString(row) for row in accessor.get_placement_group_table()]
    return {
        "actors": actors, "tasks": _tasks(events, hosts, drivers), "nodes": nodes, "drivers": drivers,
        "groups": [_group(row) for row in groups if type(row).PlacementGroupState.Name(row.state) != "REMOVED"],
        "fixed": _fixed(accessor),
    }  # fmt: skip


def _resources(amounts: Any) -> list[list[Any]]:
    """[name, amount] of the resources that users ask for, without the marks of nodes and placement groups."""
    return sorted(
        [name, amount] for name, amount in amounts.items()
        if amount > 0 and not name.startswith("node:") and "_group_" not in name and name != "object_store_memory"
    )  # fmt: skip


def _fixed(accessor: Any) -> bool:
    """Whether Ray's monitor reports that it only counts nodes. An autoscaler has named node types instead."""
    if not hasattr(accessor, "get_internal_kv"):  # Ray 2.9 does not tell it here
        return False
    if accessor.get_internal_kv(b"", b"__autoscaler_v2_enabled") == b"1":
        return False
    status = accessor.get_internal_kv(b"", b"__autoscaling_status")
    report = json.loads(status).get("autoscaler_report") if status else None
    types = [*(report.get("active_nodes") or ()), *(report.get("idle_nodes") or ())] if report else []
    # ray.autoscaler._private.util.format_readonly_node_type: "node_" and the id of the node.
    return bool(types) and all(re.match("node_[0-9a-f]{56}$", kind) for kind in types)


def _options(kind: Any, address: str) -> Any:
    if not hasattr(kind, "create"):  # Ray 2.9
        return kind.from_gcs_address(address)
    return kind.create(address, None, allow_cluster_id_nil=True, fetch_cluster_id_if_nil=False)


def _jobs(accessor: Any) -> Any:
    try:
        return accessor.get_job_table(skip_submission_job_info_field=True)
    except TypeError:  # Ray 2.9 has no such parameter
        return accessor.get_job_table()


def _actor(row: Any, hosts: dict[str, str]) -> dict[str, Any]:
    address: Any = row.address
    node = (row.node_id or (address.node_id if hasattr(address, "node_id") else address.raylet_id)).hex()
    death = ""
    if row.HasField("death_cause"):
        kind = row.death_cause.WhichOneof("context")
        context = getattr(row.death_cause, kind) if kind else None
        death = str(getattr(context, "error_message", "") or getattr(context, "formatted_exception_string", "") or kind)
    return {
        "actor_id": row.actor_id.hex(), "name": row.name or row.class_name, "class": row.class_name,
        "state": type(row).ActorState.Name(row.state), "host": hosts.get(node, ""), "pid": row.pid,
        "death": COLOUR.sub("", death), "resources": _resources(row.required_resources),
    }  # fmt: skip


def _group(row: Any) -> dict[str, Any]:
    created_ms = getattr(row, "placement_group_creation_timestamp_ms", 0)  # Ray 2.9 does not say it
    return {
        "group_id": row.placement_group_id.hex(), "name": row.name,
        "state": type(row).PlacementGroupState.Name(row.state),
        "bundles": [_resources(bundle.unit_resources) for bundle in row.bundles],
        "age_s": max(0.0, time.time() - created_ms / 1e3) if created_ms else None,
    }  # fmt: skip


def _tasks(events: list[Any], hosts: dict[str, str], drivers: dict[str, Any]) -> list[dict[str, Any]]:
    from ray.core.generated import common_pb2 as _common

    common: Any = _common  # as above
    now_ns = time.time_ns()
    callers = {
        event.task_id: (hosts.get(event.state_updates.node_id.hex(), ""), event.state_updates.worker_pid)
        for event in events
        if event.state_updates.worker_pid
    }
    tasks = []
    for event in events:
        info, updates = event.task_info, event.state_updates
        stamps = _stamps(updates, common.TaskStatus)
        name = info.func_or_class_name or info.name
        if not stamps or name in ("", "harness_collect"):  # the driver itself appears as a task without a name
            continue
        # Several states may have the same time; the state that is later in the protocol was reached later.
        at, state = stamps[-1]
        parent = info.parent_task_id
        caller = callers.get(parent, ("", 0))
        if not caller[1] and parent[:-4] == b"\xff" * (len(parent) - 4):  # task id of a driver: 0xff, then its job
            driver = drivers.get(parent[-4:].hex(), {})
            caller = driver.get("host", ""), driver.get("pid", 0)
        node = updates.node_id.hex()
        tasks.append({
            "task_id": event.task_id.hex(), "name": name,
            "state": common.TaskStatus.Name(state), "age_s": max(0.0, (now_ns - at) / 1e9),
            "host": hosts.get(node, ""), "pid": updates.worker_pid, "actor_id": info.actor_id.hex(),
            "caller_host": caller[0], "caller_pid": caller[1],
            "error": COLOUR.sub("", updates.error_info.error_message),
            "resources": _resources(info.required_resources),
        })  # fmt: skip
    tasks.sort(key=lambda task: (task["state"] in ENDED, task["age_s"]))
    return tasks[:MAX_TASKS]


def _stamps(updates: Any, statuses: Any) -> list[tuple[int, int]]:
    """(time, state) pairs of a task, in order."""
    if hasattr(updates, "state_ts_ns"):
        return sorted((at, state) for state, at in updates.state_ts_ns.items())
    # Ray 2.9 has one field for each state: running_ts is the time of RUNNING.
    fields = [field.name for field in updates.DESCRIPTOR.fields if field.name.endswith("_ts")]
    return sorted((at, statuses.Value(name[:-3].upper())) for name in fields if (at := getattr(updates, name)))


if __name__ == "__main__":
    json.dump(main(sys.argv[1]), sys.stdout)
