"""Ids that no tokenizer knows."""

from __future__ import annotations

from harness.parity.causes.family import CauseFamily

VOCAB = CauseFamily(
    "VOCAB",
    fix="mask the ids above the tokenizer's size before the engine samples",
    alone="the id itself is not in the tokenizer",
)

FAMILIES = (VOCAB,)
