"""What an adapter is: a table of a framework's symbols, what each of them records, and what the framework cannot give.

A table names things and decides nothing: `patching` finds the symbols, `calls` runs the readers. One `Hook` for a
function or a method; a reader is a plain function of the table's module that gets the finished `Call`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from probes.adapters.calls import Call


@dataclass(frozen=True)
class Hook:
    """One symbol of a framework, `package.module:Class.method` or `package.module:function`.

    A call of it is one span, called `span` (default: the symbol's last words), with the step that `step` leads to:
    a path of attributes from an argument, such as `self.state.global_step`. `record` reads the finished call, `before`
    the call that is about to run. `when`: under which condition a job calls it at all; one without a condition that
    never fires is a defect to report. `since`, `until`: versions of the framework that have the symbol.
    """

    symbol: str
    span: str = ""
    step: str = ""
    record: Callable[[Call], None] | None = None
    before: Callable[[Call], None] | None = None
    when: str = ""
    since: str = ""
    until: str = ""

    @property
    def module(self) -> str:
        return self.symbol.partition(":")[0]

    @property
    def path(self) -> list[str]:
        """The names that lead from the module to it: one for a function, two for a method."""
        return self.symbol.partition(":")[2].split(".")

    @property
    def name(self) -> str:
        """Of its spans."""
        return self.span or ".".join(self.path)


@dataclass(frozen=True)
class Adapter:
    """One framework as the job's processes know it: which versions were tested, its hooks.

    `versions`: the first tested version, and the first that is not. `packages`: top-level packages whose import means
    that a process belongs to the job. `roles`: how a process's own name begins (a Ray actor's class or name) -> role in
    the recording. `missing`: what the framework cannot give -> why; a check that needs it is not tested.
    """

    framework: str
    distribution: str
    versions: tuple[str, str]
    hooks: tuple[Hook, ...]
    packages: tuple[str, ...] = ()
    roles: Mapping[str, str] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)

    @property
    def triggers(self) -> tuple[str, ...]:
        """The packages before whose import the hooks have to be ready."""
        return self.packages or (self.framework,)

    def tested(self, version: str) -> bool:
        """Is this version within the tested range? A pre-release counts as its release."""
        first, end = self.versions
        return _parts(first) <= _parts(version) < _parts(end)

    def hooks_of(self, version: str) -> tuple[Hook, ...]:
        """The hooks that a version has; all of them for an unknown one (an empty string)."""
        return tuple(hook for hook in self.hooks if not version or _within(hook, version))


def compare(first: str, second: str) -> int:
    """Below, at or above 0: whether a version comes before another, is equal to it, or comes after."""
    return (_parts(first) > _parts(second)) - (_parts(first) < _parts(second))


def _within(hook: Hook, version: str) -> bool:
    version_parts = _parts(version)
    return (not hook.since or _parts(hook.since) <= version_parts) and (
        not hook.until or version_parts < _parts(hook.until)
    )


def _parts(version: str) -> tuple[int, ...]:
    match = re.match(r"\d+(?:\.\d+)*", version)
    parts = [int(part) for part in match[0].split(".")] if match else []
    while parts and not parts[-1]:
        parts.pop()
    return tuple(parts)
