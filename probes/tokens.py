"""Token log: rollouts and experience as checksummed frames, one write(2) per frame.

The file appears with the first frame, so a process without tokens leaves none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from probes.format import Flat, Ragged, encode_frame
from probes.journal import AppendOnly


class TokenLog(AppendOnly):
    """The frames of one process."""

    def write(
        self, kind: str, step: int, role: str, rank: int, fields: Mapping[str, Any], arrays: Mapping[str, Flat | Ragged]
    ) -> None:
        """Append one frame; RecordingError when it cannot be written, TypeError for an array that is neither Flat nor Ragged."""
        self._own()
        self.append(encode_frame(kind, step, role, rank, fields, arrays))


def boundaries(
    prompt: Any, output: Any, *, specials: Any = (), decode: Any = None, n: int = 8
) -> dict[str, Any]:
    """The fields of a `boundaries` event: first and last n ids of prompt and output, their text, and the special ids that occur.

    text_first is the text of the first prompt ids, text_seam of the last prompt ids with the first output ids, text_last of the
    last output ids; empty without `decode` (ids -> str).
    """
    prompt, output = _ids(prompt), _ids(output)
    tail = -n if n else len(prompt) + len(output)
    fields: dict[str, Any] = {
        "prompt_first": prompt[:n], "prompt_last": prompt[tail:], "output_first": output[:n], "output_last": output[tail:],
        "prompt_len": len(prompt), "output_len": len(output),
        "specials": sorted(set(specials) & {*prompt, *output}),
    }  # fmt: skip
    text = decode or (lambda ids: "")
    fields["text_first"] = text(fields["prompt_first"])
    fields["text_seam"] = text(fields["prompt_last"] + fields["output_first"])
    fields["text_last"] = text(fields["output_last"])
    return fields


def _ids(values: Any) -> list[int]:
    return [int(value) for value in (values.tolist() if hasattr(values, "tolist") else values)]
