"""One call of a hooked symbol, as its reader sees it, and what the readers of one process remember between calls."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from probes.adapters.table import Adapter, Hook

if TYPE_CHECKING:
    from probes.install import Recorder


@dataclass
class Job:
    """What the readers of one process share: the step that it is in, and `memory` for what one hook tells another."""

    adapter: Adapter
    digests: bool = False  # were digests of weights asked for? They read every weight
    step: int = -1
    memory: dict[str, Any] = field(default_factory=dict)
    configured: bool = False


class Call:
    """A call of a hooked symbol. `result` is there for `record`, not for `before`; what a call raised is kept nowhere:
    its traceback leads to the frames below, which hold tensors, and to this call.

    A reader reads: it changes no argument and no result, and may raise anything, which turns its hook off.
    """

    def __init__(
        self, hook: Hook, original: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any],
        recorder: Recorder, job: Job,
    ) -> None:  # fmt: skip
        self.hook, self.recorder, self.job = hook, recorder, job
        self.name = hook.name  # of the span; `before` may know a better one
        self.result: Any = None
        self.seconds = 0.0
        self._original, self._args, self._kwargs = original, args, kwargs
        self._bound: dict[str, Any] | None = None

    @property
    def arguments(self) -> dict[str, Any]:
        """Name -> value of every argument, defaults included."""
        if self._bound is None:
            bound = inspect.signature(self._original).bind(*self._args, **self._kwargs)
            bound.apply_defaults()
            self._bound = dict(bound.arguments)
        return self._bound

    @property
    def owner(self) -> Any:
        """The object whose method was called (its first argument)."""
        return self._args[0] if self._args else next(iter(self._kwargs.values()))

    @property
    def step(self) -> int:
        """The step that this process is in."""
        return self.job.step

    def find(self, path: str) -> Any:
        """The value at the end of a path such as `self.state.global_step`; LookupError where it leads nowhere."""
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
        """Record the resolved configuration, once a process: `harness record` puts it into run.json.

        `scenario`: what docs/reference/format.md lists under `scenario`. `framework`: the settings that are the
        framework's own and bear on the numbers: a pair of runs that differs in one is confounded. `missing`: what this
        job's settings deny -> why.
        """
        if not self.job.configured:
            self.job.configured = True
            self.recorder.event(
                "configuration", framework=self.job.adapter.framework, scenario=dict(scenario),
                settings=dict(framework), backend=backend, seeds=dict(seeds), mode=mode, missing=dict(missing or {}),
            )  # fmt: skip


_NOTHING = object()
