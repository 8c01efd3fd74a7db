"""What the core does not bring: the extras of this distribution, by the modules that they install."""

from __future__ import annotations

import importlib.util
import re

DISTRIBUTION = "rlhf-harness"


def bringing(module: str) -> str:
    """The extra that brings a module; empty where none does."""
    import importlib.metadata

    try:
        wanted = importlib.metadata.requires(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:  # run from a checkout that is not installed
        return ""
    found = (re.match(rf"{re.escape(module)}\b.*extra == [\"'](\w+)[\"']", one) for one in wanted)
    return next((one[1] for one in found if one), "")


def need(module: str) -> None:
    """Raises ModuleNotFoundError, which the command line turns into a sentence, before a program fails without it."""
    if importlib.util.find_spec(module) is None:
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)
