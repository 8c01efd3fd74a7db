"""Prompts: the engine saw other ids than it was sent."""

from __future__ import annotations

from harness.parity.causes.family import CauseFamily

TOKENIZATION = CauseFamily(
    "TOKENIZATION",
    fix="send token ids, and let one place alone add special tokens",
    alone="its proof compares whole prompts, id by id",
    suspicion=10,
    premise=True,
)
TRUNCATION = CauseFamily(
    "TRUNCATION",
    fix="raise the engine's limit on prompts, or refuse longer ones before they are sent",
    alone="its proof compares whole prompts, id by id",
    suspicion=10,
    premise=True,
)
TEMPLATE = CauseFamily(
    "TEMPLATE",
    fix="apply the chat template once, with add_generation_prompt=True",
    alone="its proof compares whole prompts, id by id",
    suspicion=10,
    premise=True,
)

FAMILIES = (TOKENIZATION, TRUNCATION, TEMPLATE)
