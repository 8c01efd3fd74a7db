"""One call of a hooked symbol, as its readers see it, and the state that the readers of a process share."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from probes.adapters.table import Adapter, Hook

if TYPE_CHECKING:
    from probes.install import Recorder


@dataclass
class Job:
    """State that the readers of one process share.

    `step`: the step that the process is in; -1 before the first one. `memory`: values that one hook leaves for
    another.
    """

    adapter: Adapter
    digests: bool = False  # whether digests of weights were asked for; they read every weight
    step: int = -1
    memory: dict[str, Any] = field(default_factory=dict)
    configured: bool = False


class Call:
    """A call of a hooked symbol, as a reader sees it.

    `result` is set for `record` and not yet for `before`. `error` is the text of a failed call's exception. The
    exception itself is not kept: its traceback would keep the frames below alive, with their tensors, and this object
    too.

    A reader only reads: it changes neither arguments nor result. It may raise any exception; that turns its hook off.
    """

    def __init__(
        self, hook: Hook, original: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any],
        recorder: Recorder, job: Job,
    ) -> None:  # fmt: skip
        self.hook, self.recorder, self.job = hook, recorder, job
        self.name = hook.name  # name of the span; `before` may replace it with a more exact one
        self.result: Any = None
        self.error = ""
        self.seconds = 0.0
        self._original, self._args, self._kwargs = original, args, kwargs
        self._bound: dict[str, Any] | None = None

    @property
    def arguments(self) -> dict[str, Any]:
        """Return every argument by name, defaults included."""
        if self._bound is None:
            bound = inspect.signature(self._original).bind(*self._args, **self._kwargs)
            bound.apply_defaults()
            self._bound = dict(bound.arguments)
        return self._bound

    @property
    def keywords(self) -> Mapping[str, Any]:
        """Return the arguments that the caller passed by name."""
        return self._kwargs

    @property
    def owner(self) -> Any:
        """Return the first argument: for a method, the object whose method was called."""
        return self._args[0] if self._args else next(iter(self._kwargs.values()))

    @property
    def step(self) -> int:
        """Return the step that this process is in."""
        return self.job.step

    def find(self, path: str) -> Any:
        """Return the value at the end of a path such as `self.state.global_step`. Raises LookupError where a name is
        missing.
        """
        first, *names = path.split(".")
        value = self.owner if first == "self" else self.arguments[first]
        for name in names:
            value = value[name] if isinstance(value, Mapping) else getattr(value, name, _NOTHING)
            if value is _NOTHING:
                raise LookupError(f"{path} leads nowhere: there is no {name!r}")
        return value

    def configuration(
        self, scenario: Mapping[str, Any], framework: Mapping[str, Any], *, backend: str, seeds: Mapping[str, Any],
        mode: str, missing: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        """Record the resolved configuration, once per process. `harness record` copies it into run.json.

        `scenario`: the keys that docs/reference/format.md lists under `scenario`. `framework`: the framework's own
        settings that affect numbers; two runs that differ in one of them are confounded. `missing`: what this job's
        settings make impossible to record -> why.
        """
        if not self.job.configured:
            self.job.configured = True
            self.recorder.event(
                "configuration", framework=self.job.adapter.framework, scenario=dict(scenario),
                settings=dict(framework), backend=backend, seeds=dict(seeds), mode=mode, missing=dict(missing or {}),
            )  # fmt: skip


def running_local(function: str, name: str) -> Any:
    """Return a local variable of a running function that has led to this call, for what no argument carries.

    It is only read. Raises LookupError where no such function is running, as in another version.
    """
    frame = sys._getframe().f_back
    while frame is not None:
        if frame.f_code.co_name == function and name in (variables := frame.f_locals):
            return variables[name]
        frame = frame.f_back
    raise LookupError(f"no running function {function} has a variable {name}")


_NOTHING = object()
