"""Pythons of other versions that this machine has, and throwaway environments of other packages than the harness's."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest


def python(version: str) -> str | None:
    """The interpreter of a version such as "3.10", from PATH or pyenv; None where there is none."""
    places = [None, *(str(folder) for folder in Path.home().glob(".pyenv/versions/*/bin"))]
    candidates = (shutil.which(f"python{version}", path=place) for place in places)
    return next((path for path in candidates if path and "shims" not in path), None)


def environment(folder: Path, base: str, *packages: str) -> Path:
    """The Python of a new environment in `folder` with these packages; skips where they cannot be had."""
    made = folder / "bin" / "python"
    uv = str(Path(sys.executable).with_name("uv"))
    install = [uv, "pip", "install", "--quiet", "--python", str(made), *packages]
    for command in ([uv, "venv", "--quiet", "--python", base, str(folder)], install):
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        if done.returncode:
            pytest.skip(f"{' '.join(packages)} cannot be installed: {done.stderr.strip().splitlines()[-1:]}")
    return made
