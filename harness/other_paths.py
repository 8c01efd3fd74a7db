"""What to type in place of a path that cannot be written to: a free one beside it, and a look at its disk."""

from __future__ import annotations

import os
import shlex
from itertools import chain, count
from pathlib import Path


def free_path(path: Path) -> Path:
    """Return the path, with a number appended to its name if it exists."""
    path = path if path.name else path.resolve()  # "." has no name
    numbered = (path.with_name(f"{path.stem}-{number}{path.suffix}") for number in count(2))
    return next(candidate for candidate in chain([path], numbered) if not os.path.lexists(candidate))


def another_out(path: str | os.PathLike[str]) -> str:
    """Return the fix for an --out that exists already."""
    return f"--out {shlex.quote(str(free_path(Path(path))))}"


def nearest_folder(path: Path) -> Path:
    """Return the path if it is a folder, else the first above it that exists."""
    return next((folder for folder in (path, *path.parents) if os.path.isdir(folder)), Path("/"))


def disk_of(path: str | os.PathLike[str]) -> str:
    """Return the command that shows the free space of the disk on which the path is, or would be."""
    return f"df -h {shlex.quote(str(nearest_folder(Path(path))))}"
