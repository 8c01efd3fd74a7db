"""What the trainer recorded of the run's tokenizer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.recordings.records.values import integer, token_ids, whole_number


@dataclass(frozen=True)
class TokenizerInfo:
    """The `tokenizer` event. `size`: ids that it knows; `begin_id`: with which it begins a text (BOS); `end_ids`: that
    end one (EOS); `generation_prompt`: ids with which its chat template ends a prompt."""

    size: int | None
    begin_id: int | None
    end_ids: tuple[int, ...]
    generation_prompt: tuple[int, ...]

    @classmethod
    def of(cls, event: Mapping[str, Any]) -> TokenizerInfo:
        ends = event.get("eos")
        ids = (integer(end) for end in (ends if isinstance(ends, list) else [ends]))
        return cls(
            size=whole_number(event.get("size")),
            begin_id=integer(event.get("bos")),
            end_ids=tuple(end for end in ids if end is not None),
            generation_prompt=token_ids(event.get("generation_prompt")) or (),
        )

    @property
    def specials(self) -> tuple[int, ...]:
        """Ids that begin or end a text."""
        return self.end_ids if not self.begin_id else (*self.end_ids, self.begin_id)


NO_TOKENIZER = TokenizerInfo.of({})  # of a run that recorded none
