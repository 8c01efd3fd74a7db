"""How we start Ray: on loopback, and with workers that import nothing from the current folder of the harness.

Whoever can reach one of Ray's ports may run code as this user.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

# The advice where nothing answers at a cluster's address.
RAY_PORT = 6379  # default port of the GCS
FIND_GCS = "pgrep -af gcs_server   # on that host: its --gcs_server_port is the port to ask; none: no cluster"

# Ray gives a node the loopback address if it supports only one node, as on macOS and Windows. Its servers then bind to
# that address (ray/_private/services.py, get_node_ip_address). The option `_node_ip_address="127.0.0.1"` of ray.init
# does not help: Ray replaces it with the network's address.
ONE_NODE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"


@contextlib.contextmanager
def on_loopback() -> Iterator[None]:
    """A cluster that ray.init starts within this context binds to 127.0.0.1, and so do its workers."""
    from ray._private import ray_constants

    variable, constant = os.environ.get(ONE_NODE), ray_constants.ENABLE_RAY_CLUSTER
    os.environ[ONE_NODE] = "0"
    ray_constants.ENABLE_RAY_CLUSTER = False  # Ray read the variable at import
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = constant
        if variable is None:
            del os.environ[ONE_NODE]
        else:
            os.environ[ONE_NODE] = variable


# Services of the head node: they start nodes, show the cluster in a browser, and print what actors print.
_UNUSED = ("start_monitor", "start_api_server", "start_log_monitor")


@contextlib.contextmanager
def lean() -> Iterator[None]:
    """A cluster that ray.init starts within this context has no autoscaler, no dashboard and no log monitor.

    Nothing here uses them, and each is an interpreter with Ray's imports. Nor does it start workers before they are
    needed.
    """
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
    """A list of folders to which Ray cannot add: it would put the driver's current folder before all others in its
    workers."""

    def extend(self, more: Any) -> None: ...


def job() -> Any:
    """The `job_config` of ray.init."""
    from ray.job_config import JobConfig

    config = JobConfig()
    config._py_driver_sys_path = _Fixed()
    return config
