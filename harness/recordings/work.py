"""Counts how often this process did expensive work: `("scan", file)`, `("gather", directory of a recording)`.

Tests check the commands with it; nothing else reads it.
"""

from __future__ import annotations

from collections import Counter

WORK: Counter[tuple[str, str]] = Counter()
