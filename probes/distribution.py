"""The name of the distribution, and how it is installed where nothing is known of the machine."""

from __future__ import annotations

NAME = "rlhf-harness"


def pip_install(*extras: str) -> str:
    """The command for another machine: a runner, the reader of a page or of an issue. `harness.extras` has that for
    this installation."""
    return f"pip install '{NAME}[{','.join(extras)}]'" if extras else f"pip install {NAME}"
