"""The name of the distribution, and the command that installs it on a machine about which nothing is known."""

from __future__ import annotations

NAME = "rlhf-harness"


def pip_install(*extras: str) -> str:
    """Return the install command for readers of a page or of an issue, who are on another machine.

    No package index has this distribution, hence the checkout. `harness.extras` has the command for this
    installation.
    """
    return f"pip install '.{named(*extras)}'   # in a checkout of {NAME}"


def named(*extras: str) -> str:
    """Return extras as they are written behind a distribution's name, a path or a wheel."""
    return f"[{','.join(sorted({*extras}))}]" if extras else ""
