"""Ray on a machine that is busy otherwise, where its processes take minutes to start: two constants of 15 and 30 s.

Its first node has 30 s to register. And its raylet waits 15 s for the files in which its agents say which ports they
found free, then fails a check and dies: the ports are chosen here, and the files are there before it.
"""

from __future__ import annotations

import socket
from typing import Any

from after_import import after

TIMES = 20
PORTS = ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port", "runtime_env_agent_port")


def _free() -> int:
    with socket.socket() as one:
        one.bind(("", 0))
        return int(one.getsockname()[1])


@after("ray._private.node")
def _patient(module: Any) -> None:
    clock, begin, raylet = module.time, module.Node.__init__, module.Node.start_raylet

    class Slow:
        def __getattr__(self, name: str) -> Any:
            return getattr(clock, name)

        @staticmethod
        def monotonic() -> float:
            return float(clock.monotonic() / TIMES)

    def __init__(self: Any, ray_params: Any, *args: Any, **kwargs: Any) -> None:
        if not kwargs.get("connect_only"):  # a node of its own, the head or another one
            for name in PORTS:
                setattr(ray_params, name, getattr(ray_params, name, None) or _free())
        begin(self, ray_params, *args, **kwargs)

    def start_raylet(self: Any, *args: Any, **kwargs: Any) -> Any:
        from ray import _raylet

        for name in PORTS:
            port = getattr(self._ray_params, name)
            _raylet.persist_port(self._session_dir, self._node_id, getattr(_raylet, f"{name.upper()}_NAME"), port)
        return raylet(self, *args, **kwargs)

    module.time, module.Node.__init__, module.Node.start_raylet = Slow(), __init__, start_raylet
