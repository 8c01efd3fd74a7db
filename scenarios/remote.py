"""One way to call an actor, in this process or through Ray, so that the PPO stack is the same in a unit test and on a
cluster.

An `Actor` runs one method at a time, in order, like a Ray actor. `Local` gives it a thread of its own; `Remote` wraps
a Ray actor handle. `Future.result` raises the method's errors.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future as ThreadFuture
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Protocol

from probes.identity import WATCH


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
    """An actor in this process. `urgent` methods run at once beside the one in progress, because an abort must not
    queue.
    """

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


TRACEBACK = "traceback.txt"  # in a run's directory: the traceback of the error that ended it


class ActorFailed(Exception):
    """An error of an actor as plain data: its own class may not be importable at the caller.

    `kind`: the exception's class name. `trace`: its traceback. `fix`: its advice.
    """

    def __init__(self, kind: str, message: str, trace: str = "", fix: str = "") -> None:
        super().__init__(f"{kind}: {message}")
        self.kind, self.message, self.trace, self.fix = kind, message, trace, fix

    def __reduce__(self) -> tuple[Any, ...]:
        return ActorFailed, (self.kind, self.message, self.trace, self.fix)


class Host:
    """The class of every Ray actor: it imports `target` ("module:Class") in its own interpreter.

    So the controller imports neither torch nor an engine; their classes are only names to it.
    """

    def __init__(self, target: str, *args: Any, **kwargs: Any) -> None:
        _sign_output()
        self._failed: ActorFailed | None = None
        self._make(target, args, kwargs)

    def become(self, target: str, variables: dict[str, str], *args: Any, **kwargs: Any) -> None:
        """Turn a spare process into another actor, with these environment variables."""
        os.environ.update(variables)
        if watched := variables.get(WATCH):
            from probes import attach

            attach.begin(watched)
        self._make(target, args, kwargs)

    def _make(self, target: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        import importlib

        module, _, name = target.partition(":")
        try:
            with _as_data():
                self._object = getattr(importlib.import_module(module), name)(*args, **kwargs)
        except ActorFailed as error:
            # Ray would turn an error of a constructor into a dead actor with a text. Here the first call raises the
            # whole error.
            self._failed = error

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        if self._failed is not None:
            raise self._failed
        with _as_data():
            return getattr(self._object, method)(*args, **kwargs)


SIGNATURE = "rlhf-harness actor"


def _sign_output() -> None:
    """Write this actor's id into its log, so that the log can be found after the actor died without an answer."""
    import ray

    print(SIGNATURE, ray.get_runtime_context().get_actor_id(), file=sys.stderr, flush=True)


@contextmanager
def _as_data() -> Iterator[None]:
    try:
        yield
    except ActorFailed:
        raise
    except Exception as error:  # the caller must be able to read it without its class
        fix = str(getattr(error, "fix", None) or "")
        raise ActorFailed(type(error).__name__, str(error), traceback.format_exc(), fix) from None


class Remote:
    """A Ray actor of class `Host`. `urgent` methods run in its concurrency group of that name, beside the one in
    progress.
    """

    def __init__(self, handle: Any, urgent: tuple[str, ...] = ()) -> None:
        self.handle = handle
        self._urgent = urgent

    def __eq__(self, value: object) -> bool:
        return isinstance(value, Remote) and self.handle == value.handle

    def __hash__(self) -> int:
        return hash(self.handle)

    def submit(self, method: str, *args: Any, **kwargs: Any) -> _RayFuture:
        bound = self.handle.call
        if method in self._urgent:
            bound = bound.options(concurrency_group="urgent")
        return _RayFuture(bound.remote(method, *args, **kwargs))

    def become(self, target: str, variables: dict[str, str], *args: Any, **kwargs: Any) -> _RayFuture:
        """Turn a spare process into this actor. Before the future is done, calls of other processes may come first."""
        return _RayFuture(self.handle.become.remote(target, variables, *args, **kwargs))

    def stop(self) -> None:
        import ray

        ray.kill(self.handle)
