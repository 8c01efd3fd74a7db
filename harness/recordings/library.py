"""The recordings that one command opens while they grow: a file is scanned again only if it has grown."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.recordings.store import Recording


class Library:
    """Opens recordings. If one is opened again, scans of unchanged files are reused.

    `tell`: receives progress messages about the reading, and of the judge.
    """

    def __init__(self, tell: Callable[[str], None] = lambda doing: None) -> None:
        self.tell = tell
        self._last: dict[Path, Recording] = {}

    def open(self, path: Path) -> Recording:
        """The recording as it is now. Raises FormatError and OSError as `Recording` does."""
        from harness.recordings.store import Recording  # imports NumPy, which no run needs

        recording = Recording(path, tell=self.tell, earlier=self._last.get(path))
        self._last[path] = recording
        return recording
