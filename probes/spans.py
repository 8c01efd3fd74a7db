"""Spans: a named stretch of time, recorded when it ends, even with an exception."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING, Any

from probes import redaction
from probes.errors import RecordingError

if TYPE_CHECKING:
    from probes.install import Recorder


SAID, LOOKED_AT = 500, 20_000  # characters of an exception's text that are kept; that are scrubbed before the cut


def error_text(error: BaseException | None) -> str:
    """Return an exception's text without secrets, at most 500 characters. Raises nothing, whatever its `__str__`
    does.
    """
    if error is None:
        return ""
    try:
        text = str(error)
    except Exception:
        text = "(its text cannot be made)"
    return redaction.text(f"{type(error).__name__}: {text[:LOOKED_AT]}", SAID)


# Memory that is recorded at a span's beginning too, under these names; the difference is what the span freed or took.
BEFORE = {name: f"{name}_before" for name in ("rss", "cuda_allocated", "cuda_reserved")}


class Span:
    """Records one `span` event when it ends: name, start_ns, dur_ns, ok, and error when it ended in an exception.

    A span of a step also records the memory of its process (`probes.memory`), before it and at its end.
    """

    __slots__ = ("_before", "_fields", "_name", "_recorder", "_start")

    def __init__(self, recorder: Recorder, name: str, fields: dict[str, Any]) -> None:
        self._recorder, self._name, self._fields, self._start = recorder, name, fields, 0
        self._before: dict[str, int] = {}

    def note(self, **fields: Any) -> None:
        """Add fields that are known only while the span runs."""
        self._fields.update(fields)

    @property
    def opened(self) -> dict[str, Any]:
        """Return what is known while it runs: its name, when it began, its fields so far."""
        return {"name": self._name, "start_ns": self._start, "fields": self._fields}

    def __enter__(self) -> Span:
        if self._fields.get("step") is not None:
            self._before = self._recorder.memory()
        self._start = time.monotonic_ns()
        self._recorder.running[id(self)] = self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._recorder.running.pop(id(self), None)
        fields = {**self._fields, "name": self._name, "start_ns": self._start,
                  "dur_ns": time.monotonic_ns() - self._start, "ok": error is None}  # fmt: skip
        if fields.get("step") is not None:
            fields.update(self._recorder.memory())
            for name, before in BEFORE.items():
                if name in self._before:
                    fields[before] = self._before[name]
        if error is not None:
            fields["error"] = error_text(error)
        try:
            self._recorder.event("span", **fields)
        except RecordingError:
            if error is None:
                raise  # otherwise the exception under way is more important
