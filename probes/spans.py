"""Spans: a named stretch of time that is recorded when it ends, also when it ends in an exception."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING, Any

from probes.journal import RecordingError

if TYPE_CHECKING:
    from probes.install import Recorder


class Span:
    """Records one `span` event on leaving: name, start_ns, dur_ns, ok, and error when it ended in an exception."""

    __slots__ = ("_fields", "_name", "_recorder", "_start")

    def __init__(self, recorder: Recorder, name: str, fields: dict[str, Any]) -> None:
        self._recorder, self._name, self._fields, self._start = recorder, name, fields, 0

    def __enter__(self) -> Span:
        self._start = time.monotonic_ns()
        return self

    def note(self, **fields: Any) -> None:
        """Fields known only while the span runs."""
        self._fields.update(fields)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        fields = self._fields
        duration = time.monotonic_ns() - self._start
        if kind is not None:
            fields["error"] = f"{kind.__name__}: {error}"[:500]
        try:
            self._recorder.event(
                "span", name=self._name, start_ns=self._start, dur_ns=duration, ok=kind is None, **fields
            )
        except RecordingError:
            if kind is None:
                raise  # otherwise the exception under way says more than the full disk does
