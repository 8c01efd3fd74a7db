"""How often this process did what costs time: `("scan", file)`, `("gather", directory of a recording)`.

Tests hold the commands to it; nothing else reads it.
"""

from __future__ import annotations

from collections import Counter

WORK: Counter[tuple[str, str]] = Counter()
