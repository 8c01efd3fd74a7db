"""The types of an adapter: a table of a framework's symbols, what each of them records, and what the framework cannot
give.

A table only names things: `patching` finds the symbols and `calls` runs the readers. There is one `Hook` for each
function or method. A reader is a plain function of the table's module that receives the `Call`.
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

    Each call of it is one span. `span`: the span's name; by default the symbol's path. `step`: a path of attributes
    from an argument that leads to the step, such as `self.state.global_step`. `record`: reads the finished call.
    `before`: reads the call that is about to run. `failed`: reads a call that raised (`Call.error`). `when`: the
    condition under which a job calls the symbol; a hook without a condition that never fires is reported as a defect.
    `since`, `until`: the versions of the framework that have the symbol, `until` excluded.
    """

    symbol: str
    span: str = ""
    step: str = ""
    record: Callable[[Call], None] | None = None
    before: Callable[[Call], None] | None = None
    failed: Callable[[Call], None] | None = None
    when: str = ""
    since: str = ""
    until: str = ""

    @property
    def module(self) -> str:
        return self.symbol.partition(":")[0]

    @property
    def path(self) -> list[str]:
        """Return the names that lead from the module to the symbol: one for a function, two for a method."""
        return self.symbol.partition(":")[2].split(".")

    @property
    def name(self) -> str:
        """Return the name of its spans."""
        return self.span or ".".join(self.path)


@dataclass(frozen=True)
class Adapter:
    """One framework as the processes of a job see it: its hooks, and the versions that were tested.

    `framework`: its name. `distribution`: its Python package. `versions`: the first tested version, and the first
    later one that was not tested. `hooks`: its symbols. `packages`: top-level packages whose import means that a
    process belongs to the job. `roles`: prefix of a process's own name (a Ray actor's class or name) -> role in the
    recording. `missing`: what the framework cannot give -> why; a check that needs it is not tested.
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
        """Return the packages before whose import the hooks must be ready."""
        return self.packages or (self.framework,)

    def tested(self, version: str) -> bool:
        """Whether this version is within the tested range. A pre-release counts as its release."""
        first, end = self.versions
        return _parts(first) <= _parts(version) < _parts(end)

    def hooks_of(self, version: str) -> tuple[Hook, ...]:
        """Return the hooks that a version has; all of them for an unknown version (an empty string)."""
        return tuple(hook for hook in self.hooks if not version or _within(hook, version))


def compare(first: str, second: str) -> int:
    """Return a number below, at or above 0 where `first` is an earlier, equal or later version than `second`."""
    return (_parts(first) > _parts(second)) - (_parts(first) < _parts(second))


def _within(hook: Hook, version: str) -> bool:
    version_parts = _parts(version)
    begun = not hook.since or _parts(hook.since) <= version_parts
    ended = bool(hook.until) and version_parts >= _parts(hook.until)
    return begun and not ended


def _parts(version: str) -> tuple[int, ...]:
    match = re.match(r"\d+(?:\.\d+)*", version)
    parts = [int(part) for part in match[0].split(".")] if match else []
    while parts and not parts[-1]:
        parts.pop()
    return tuple(parts)
