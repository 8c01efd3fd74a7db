"""How we start Ray: on loopback, since whoever reaches one of its ports may run code as this user; with workers that
import nothing from the folder that the harness was called in."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

# Ray gives a node the loopback address where it supports one node only, which it does on macOS and Windows. Its servers
# then bind to that address (ray/_private/services.py, get_node_ip_address). `_node_ip_address="127.0.0.1"` of ray.init
# does not do it: Ray replaces it by the address of the network.
ONE_NODE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"


@contextlib.contextmanager
def on_loopback() -> Iterator[None]:
    """A cluster that ray.init starts within binds to 127.0.0.1, its workers too."""
    from ray._private import ray_constants

    variable, constant = os.environ.get(ONE_NODE), ray_constants.ENABLE_RAY_CLUSTER
    os.environ[ONE_NODE] = "0"
    ray_constants.ENABLE_RAY_CLUSTER = False  # read when Ray was imported
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = constant
        if variable is None:
            del os.environ[ONE_NODE]
        else:
            os.environ[ONE_NODE] = variable


# Of the head node: it tells of nodes to be started, shows the cluster in a browser, and prints what actors print.
_UNUSED = ("start_monitor", "start_api_server", "start_log_monitor")


@contextlib.contextmanager
def lean() -> Iterator[None]:
    """A cluster that ray.init starts within has no autoscaler, no dashboard and no log monitor: nothing here asks them,
    and each is an interpreter with Ray's imports. Nor does it start workers before somebody asks for one."""
    from ray._private.node import Node

    os.environ.setdefault("RAY_prestart_worker_first_driver", "0")
    replaced = {name: vars(Node)[name] for name in _UNUSED if name in vars(Node)}
    for name in replaced:
        setattr(Node, name, _nothing)
    try:
        yield
    finally:
        for name, start in replaced.items():
            setattr(Node, name, start)


def _nothing(node: Any, **options: Any) -> None:
    node._webui_url = None  # which `start_api_server` would set


class _Fixed(list[str]):
    """Folders that Ray does not add to: it puts the driver's current one before all others in its workers."""

    def extend(self, more: Any) -> None: ...


def job() -> Any:
    """The `job_config` of ray.init."""
    from ray.job_config import JobConfig

    config = JobConfig()
    config._py_driver_sys_path = _Fixed()
    return config
