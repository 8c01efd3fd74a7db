"""Pythons of other versions that this machine has, for jobs that run on another Python than the harness."""

from __future__ import annotations

import shutil
from pathlib import Path


def python(version: str) -> str | None:
    """The interpreter of a version such as "3.10", from PATH or pyenv; None where there is none."""
    places = [None, *(str(folder) for folder in Path.home().glob(".pyenv/versions/*/bin"))]
    candidates = (shutil.which(f"python{version}", path=place) for place in places)
    return next((path for path in candidates if path and "shims" not in path), None)
