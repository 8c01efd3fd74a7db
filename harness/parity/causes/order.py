"""Responses and prompts under other sample numbers."""

from __future__ import annotations

from harness.parity.causes.family import CauseFamily

ORDER = CauseFamily(
    "ORDER",
    fix="assign responses to prompts by request id, not by the order in which they finish",
    alone="its proof finds each response, whole, under another sample number",
)

FAMILIES = (ORDER,)
