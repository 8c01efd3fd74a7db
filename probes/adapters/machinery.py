"""Runs the hooks of one process: a span around each call, the reader's record after it, and a list of what was
hooked.

Nothing here may break the job. A reader that raises is turned off, and a `hook_off` event says why; its spans
continue. The time that readers take is counted in the recorder's `self_ns`.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

from probes.adapters import patching
from probes.adapters.calls import Call, Job
from probes.adapters.imports import Finder
from probes.adapters.table import Adapter
from probes.errors import RecordingError, of_a_signal
from probes.spans import error_text

if TYPE_CHECKING:
    from probes.attach import Quiet


class Machinery:
    """Hooks one framework in this process. Records into the journal that the process has at the time of the call."""

    def __init__(
        self, adapter: Adapter, version: str, journal: Callable[[], Quiet | None], *, digests: bool = False
    ) -> None:
        self.adapter, self.version, self.journal = adapter, version, journal
        self.job = Job(adapter, digests)
        self.hooks = {hook.symbol: hook for hook in adapter.hooks_of(version)}
        self.installed: list[str] = []
        self.moved: dict[str, str] = {}
        self.off: dict[str, str] = {}  # symbol of a hook whose reader failed -> why
        self._thread = threading.local()
        self._finder = Finder({hook.module for hook in self.hooks.values()}, self.imported)

    def install(self) -> None:
        """Hook the modules that are imported, and each further one once it has been imported."""
        door = ModuleType(patching.MACHINERY)
        door.begin = self.begin  # type: ignore[attr-defined]
        sys.modules[patching.MACHINERY] = door
        self._finder.install()

    def remove(self) -> None:
        """Hook nothing more. Installed hooks stay and only call their originals."""
        self._finder.remove()
        sys.modules.pop(patching.MACHINERY, None)

    def imported(self, module: ModuleType) -> None:
        """Hook every symbol of a module that has just run."""
        for hook in self.hooks.values():
            if hook.module == module.__name__:
                try:
                    patching.patch(module, hook)
                    self.installed.append(hook.symbol)
                except patching.Moved as error:
                    self.moved[hook.symbol] = str(error)
                except Exception as error:  # a class that refuses new attributes: the job continues without this hook
                    self.moved[hook.symbol] = error_text(error)
        journal = self.journal()
        if journal is not None and journal.events:
            self.greet(journal)

    def greet(self, journal: Quiet) -> None:
        """Record the installed hooks: once the journal's file exists, and again whenever hooks were added."""
        if self.installed or self.moved:
            journal.event(
                "hooks", framework=self.adapter.framework, version=self.version,
                tested=self.adapter.tested(self.version), installed=self.installed, moved=self.moved,
            )  # fmt: skip

    def begin(
        self, symbol: str, original: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Running | None:
        """Open the span of a hooked call that is about to run. Return None where its end is not recorded. Raises
        nothing.
        """
        hook, journal = self.hooks.get(symbol), self.journal()
        if hook is None or journal is None or getattr(self._thread, "reading", False):
            return None
        recorder = journal.recorder
        if recorder is None:
            self._over(journal)
            return None
        call = Call(hook, original, args, kwargs, recorder, self.job)
        self.read(call, journal, _before)
        return Running(self, call, journal)

    def read(self, call: Call, journal: Quiet, reader: Callable[[Call], None]) -> None:
        """Run a reader. Count its time as the recording's own, and turn it off if it raises."""
        symbol, recorder = call.hook.symbol, call.recorder
        if symbol in self.off or journal.off:
            self._over(journal)
            return
        began, spent = time.monotonic_ns(), recorder.self_ns
        self._thread.reading = True  # calls that a reader itself makes are not recorded
        try:
            reader(call)
        except RecordingError as error:
            journal.off = error_text(error)
        except Exception as error:  # a reader that fails with another version must not break the job
            if of_a_signal(error):
                raise
            self.off[symbol] = error_text(error)
            journal.event("hook_off", hook=symbol, error=error_text(error))
        finally:
            self._thread.reading = False
            recorder._self_ns = spent + time.monotonic_ns() - began  # replaces what the reader's events added

    def _over(self, journal: Quiet) -> None:
        """Drop what readers kept for each other, tensors included, once the recording is off: nothing would remove it
        later.
        """
        if journal.off and self.job.memory:
            self.job.memory.clear()


class Running:
    """A hooked call that has begun."""

    def __init__(self, machinery: Machinery, call: Call, journal: Quiet) -> None:
        self._machinery, self._call, self._journal = machinery, call, journal
        self._began = time.monotonic()
        self._span = journal.span(call.name, step=call.job.step, hook=call.hook.symbol)
        self._span.__enter__()

    def returned(self, result: Any) -> None:
        self._call.result = result
        self._ended(None)

    def failed(self, error: BaseException) -> None:
        self._ended(error)

    def _ended(self, error: BaseException | None) -> None:
        call = self._call
        call.seconds = time.monotonic() - self._began
        self._span.__exit__(type(error) if error else None, error, None)
        reader = call.hook.record
        if error is not None:
            call.error, reader = error_text(error), call.hook.failed
        if reader is not None:
            self._machinery.read(call, self._journal, reader)


def _before(call: Call) -> None:
    if call.hook.step:
        call.job.step = int(call.find(call.hook.step))
    if call.hook.before is not None:
        call.hook.before(call)
