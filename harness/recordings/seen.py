"""Frames of kind `seen`: the token ids that an engine received, joined to samples by request
(docs/reference/format.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from harness.recordings.tables import FrameArrays, Rows, Table
from probes.format import Extent

Read = Callable[[Path, Extent], FrameArrays]


@dataclass(frozen=True)
class _Process:
    """The requests of one process, sorted by key. If a request came several times, the first counts."""

    path: Path
    keys: np.ndarray
    places: list[tuple[Extent, int]]  # frame and row of each request


class SeenPrompts:
    """An index of every `seen` frame of a recording. The content of a frame is read again when it is needed.

    Memory: some hundred bytes per request.
    """

    def __init__(self, extents: Iterable[tuple[Path, Extent]], read: Read) -> None:
        self._read = read
        by_path: dict[Path, dict[int, tuple[Extent, int]]] = {}
        for path, at in extents:
            places = by_path.setdefault(path, {})
            for row, key in enumerate(_keys(read(path, at))):
                places.setdefault(key, (at, row))
        self._processes = [
            _Process(
                path,
                np.array(sorted(request_places), np.int64),
                [request_places[key] for key in sorted(request_places)],
            )
            for path, request_places in by_path.items()
        ]

    def with_prompts(self, table: Table) -> Table:
        """The table with a column `prompt_seen` for its requests; an empty row if no process saw the request.

        If several processes saw it (the ranks of one engine), a prompt that differs from the one that was sent is
        preferred.
        """
        requests, sent = table.flat("request"), table.rows("prompt")
        if requests is None or sent is None or "prompt_seen" in table.columns or not self._processes:
            return table
        rows = [self._prompt(int(key), sent.row(row)) for row, key in enumerate(requests)]
        offsets = np.cumsum([0, *(len(row) for row in rows)]).astype(np.int64)
        prompts_seen = Rows(np.concatenate([np.zeros(0, np.int32), *rows]), offsets)
        return replace(table, columns={**table.columns, "prompt_seen": prompts_seen})

    def _prompt(self, key: int, sent: np.ndarray) -> np.ndarray:
        prompts = [row for process in self._processes if (row := self._row(process, key)) is not None]
        altered = (row for row in prompts if not np.array_equal(row, sent))
        return next(altered, prompts[0] if prompts else np.zeros(0, np.int32))

    def _row(self, process: _Process, key: int) -> np.ndarray | None:
        place = int(np.searchsorted(process.keys, key))
        if place == len(process.keys) or process.keys[place] != key:
            return None
        at, row = process.places[place]
        prompts = self._read(process.path, at).arrays["prompt_seen"]
        return prompts.row(row) if isinstance(prompts, Rows) and row < len(prompts) else None


def _keys(frame: FrameArrays) -> list[int]:
    keys = frame.arrays.get("request")
    is_complete = isinstance(keys, np.ndarray) and "prompt_seen" in frame.arrays
    return [int(key) for key in keys] if is_complete else []  # type: ignore[union-attr]
