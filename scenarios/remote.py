"""One way to call an actor, in this process or through Ray, so that the PPO stack reads the same in a unit test and on a cluster.

An `Actor` runs one method at a time, in order, like a Ray actor. `Local` gives it a thread of its own; `Remote` wraps a Ray
actor handle. Errors of the method come out of `Future.result`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future as ThreadFuture
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol


class Future(Protocol):
    def result(self, timeout: float | None = None) -> Any: ...
    def done(self) -> bool: ...


class Actor(Protocol):
    def submit(self, method: str, *args: Any, **kwargs: Any) -> Future: ...
    def stop(self) -> None: ...


def call(actor: Actor, method: str, *args: Any, **kwargs: Any) -> Any:
    return actor.submit(method, *args, **kwargs).result()


def gather(futures: Iterable[Future]) -> list[Any]:
    return [future.result() for future in futures]


class Local:
    """An actor in this process. `urgent` methods run at once beside the one in progress (an abort must not queue)."""

    def __init__(self, target: Callable[..., Any], *args: Any, urgent: tuple[str, ...] = (), **kwargs: Any) -> None:
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix=getattr(target, "__name__", "actor"))
        self._urgent = urgent
        self._target = self._pool.submit(target, *args, **kwargs).result()

    def submit(self, method: str, *args: Any, **kwargs: Any) -> ThreadFuture[Any]:
        bound = getattr(self._target, method)
        if method in self._urgent:
            future: ThreadFuture[Any] = ThreadFuture()
            future.set_result(bound(*args, **kwargs))
            return future
        return self._pool.submit(bound, *args, **kwargs)

    def stop(self) -> None:
        close = getattr(self._target, "close", None)
        if close is not None:
            self._pool.submit(close).result()
        self._pool.shutdown(wait=True)


class _RayFuture:
    def __init__(self, ref: Any) -> None:
        self._ref = ref

    def result(self, timeout: float | None = None) -> Any:
        import ray

        return ray.get(self._ref, timeout=timeout)

    def done(self) -> bool:
        import ray

        ready, _ = ray.wait([self._ref], timeout=0)
        return bool(ready)


class Remote:
    """A Ray actor. `urgent` methods run in its concurrency group of that name, declared where the actor is made."""

    def __init__(self, handle: Any, urgent: tuple[str, ...] = ()) -> None:
        self.handle = handle
        self._urgent = urgent

    def submit(self, method: str, *args: Any, **kwargs: Any) -> _RayFuture:
        bound = getattr(self.handle, method)
        if method in self._urgent:
            bound = bound.options(concurrency_group="urgent")
        return _RayFuture(bound.remote(*args, **kwargs))

    def stop(self) -> None:
        import ray

        ray.kill(self.handle)
