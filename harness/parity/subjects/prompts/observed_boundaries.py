"""Token boundaries of a recording: the first and last ids of each sample, from its journals.

A run has a line for each sample. Every line is scanned once as bytes. Of many lines only an even share is parsed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from functools import cached_property
from typing import Any

from harness.recordings.store import Recording
from probes.format import JournalIndex

PROMPT_ENDS = ("prompt_first", "prompt_last", "prompt_len")
OUTPUT_ENDS = ("output_first", "output_last", "output_len", "specials")
MOST_PARSED = 4096  # lines of a run that are parsed at most
_KEYS = {field: b'"%b":' % field.encode() for field in ("step", "sample", *PROMPT_ENDS, *OUTPUT_ENDS)}
_NULL = b":null"
_STEP = re.compile(rb'"step":(\d+)[,}]')


class TokenBoundaries:
    """The boundary lines of one recording, which are scanned when they are first needed."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self.count = recording.count("boundaries")

    @cached_property
    def _scanned(self) -> tuple[list[str], dict[Any, list[tuple[JournalIndex, bytes]]]]:
        """Return the fields that some line lacks, and step -> the lines that will be parsed."""
        by_step: dict[Any, list[tuple[JournalIndex, bytes]]] = {}
        missed: dict[str, None] = {}
        share = max(1, math.ceil(self.count / MOST_PARSED))
        for number, (journal, line) in enumerate(self._recording.lines("boundaries")):
            # No text within a JSON string can contain a key, because its quotes are escaped.
            any_null = _NULL in line
            for field, key in _KEYS.items():
                if key not in line or (any_null and key + b"null" in line):
                    missed[field] = None
            if number % share == 0:
                by_step.setdefault(self._step_of(journal, line), []).append((journal, line))
        return list(missed), by_step

    @property
    def lacking(self) -> list[str]:
        """Return the fields that some line lacks, or has as null, in the order of discovery."""
        return self._scanned[0]

    def _step_of(self, journal: JournalIndex, line: bytes) -> Any:
        match = _STEP.search(line)
        return int(match[1]) if match else (self._recording.parsed(journal, line) or {}).get("step")

    def events(self, step: int) -> Iterator[dict[str, Any]]:
        """Yield the parsed share of one step's lines."""
        for journal, line in self._scanned[1].get(step, ()):
            event = self._recording.parsed(journal, line)
            if event is not None and event.get("step") == step:
                yield event
