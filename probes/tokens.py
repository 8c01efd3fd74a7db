"""Token log: rollouts and experience as frames with checksums, one write(2) each; and the boundaries of a sample."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from probes import redaction
from probes.frames import Flat, Ragged, encode_frame
from probes.journal import AppendOnly


class TokenLog(AppendOnly):
    """The frames of one process. `run`: the id of the run, which is in each frame."""

    def __init__(self, path: str | os.PathLike[str], run: str = "") -> None:
        super().__init__(path)
        self._run = run

    def write(
        self, kind: str, step: int, role: str, rank: int, fields: Mapping[str, Any], arrays: Mapping[str, Flat | Ragged]
    ) -> None:
        """Append one frame. Raises TypeError for an array that is neither Flat nor Ragged."""
        self.append(kind, (step, role, rank, redaction.event(kind, fields), arrays))

    def _encode(self, kind: str, content: Any) -> tuple[bytes, int]:
        return encode_frame(kind, *content, seq=self.records, run=self._run), 0  # a frame has a checksum of its own


def boundaries(
    prompt: Any, output: Any, *, specials: Iterable[int], decode: Callable[[list[int]], str] | None, n: int
) -> dict[str, Any]:
    """Return the fields of a `boundaries` event.

    They are the first and last n ids of prompt and output, their text, and the special ids that occur. text_first is
    the text of the first prompt ids. text_seam is that of the last prompt ids and the first output ids together.
    text_last is that of the last output ids. All three are empty without `decode`.
    """
    prompt, output = _ids(prompt), _ids(output)
    wanted = {*specials}
    ends = {
        "prompt_first": prompt[:n], "prompt_last": prompt[max(0, len(prompt) - n) :],
        "output_first": output[:n], "output_last": output[max(0, len(output) - n) :],
    }  # fmt: skip
    text = decode or (lambda ids: "")
    return {
        **ends, "prompt_len": len(prompt), "output_len": len(output),
        "specials": sorted(wanted.intersection(prompt) | wanted.intersection(output)),
        "text_first": text(ends["prompt_first"]), "text_seam": text(ends["prompt_last"] + ends["output_first"]),
        "text_last": text(ends["output_last"]),
    }  # fmt: skip


def _ids(values: Any) -> list[int]:
    return list(map(int, values.tolist() if hasattr(values, "tolist") else values))
