"""The name of the distribution, with its extras."""

from __future__ import annotations

NAME = "rlhf-harness"


def named(*extras: str) -> str:
    """Return extras as they are written behind a distribution's name, a path or a wheel."""
    return f"[{','.join(sorted({*extras}))}]" if extras else ""
