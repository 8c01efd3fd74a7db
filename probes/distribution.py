"""The name of the distribution, and how it is installed where nothing is known of the machine."""

from __future__ import annotations

NAME = "rlhf-harness"


def pip_install(*extras: str) -> str:
    """The command for the reader of a page or of an issue, on another machine. No index has this distribution.
    `harness.extras` has the command for this installation."""
    return f"pip install '.{named(*extras)}'   # in a checkout of {NAME}"


def named(*extras: str) -> str:
    """Extras as they stand behind a distribution's name, a path or a wheel."""
    return f"[{','.join(sorted({*extras}))}]" if extras else ""
