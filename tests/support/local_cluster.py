"""A cluster whose actors are threads of this process, so that a whole experiment runs without Ray, in seconds."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future as ThreadFuture
from typing import Any

from harness.cluster.launch import Cluster, Seat
from scenarios.remote import ActorFailed, Local


class _Waits:
    """A future that is waited for to its end, and whose errors look as those of an actor on Ray."""

    def __init__(self, future: ThreadFuture[Any]) -> None:
        self._future = future

    def result(self, timeout: float | None = None) -> Any:
        from ray.exceptions import RayTaskError

        try:
            return self._future.result()
        except Exception as error:  # whatever an actor raises reaches the controller as data
            cause = ActorFailed(type(error).__name__, str(error), fix=str(getattr(error, "fix", None) or ""))
            raise RayTaskError("call", "trace", cause) from error

    def done(self) -> bool:
        return self._future.done()


class _Remote(Local):
    """`Local` for the controller; what it passes on to other actors is `Local` itself."""

    def submit(self, method: str, *args: Any, **kwargs: Any) -> Any:
        return _Waits(super().submit(method, *args, **kwargs))


class LocalCluster(Cluster):
    """Its methods are what an experiment on one host calls; a subclass, so that their types are checked."""

    actor_cpus = 1.0

    def __init__(self, address: str | None = None, preload: Sequence[object] = ()) -> None:
        self._actors: list[Local] = []

    def __enter__(self) -> LocalCluster:
        return self

    def __exit__(self, *exc: object) -> None:
        for actor in reversed(self._actors):
            actor.stop()

    def gpus(self) -> float:
        return 0.0

    def reserve(self, bundles: list[dict[str, float]], places: Sequence[str], say: Callable[[str], None]) -> None:
        """There is room."""

    def actor(
        self, target: str, seat: Seat, *args: Any, urgent: tuple[str, ...] = (), name: str = "", **kwargs: Any
    ) -> Any:
        module, _, name = target.partition(":")
        made = _Remote(getattr(importlib.import_module(module), name), *args, urgent=urgent, **kwargs)
        self._actors.append(made)
        return made
