"""What to type in place of a path: a free one beside it, one of a similar name, and a look at its disk."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable
from itertools import chain, count
from pathlib import Path

from harness.similar_names import edits, similar


def similar_path(path: Path, others: Iterable[Path]) -> Path | None:
    """Return the path whose name, without its suffix, is most like this one's; None where no name is close."""
    by_name = {other.stem: other for other in sorted(others, key=lambda other: -edits(path.suffix, other.suffix))}
    near = similar(path.stem, by_name)
    return by_name[near[0]] if near else None


def free_path(path: Path) -> Path:
    """Return the path, with a number appended to its name if it exists. Within `.` and `/`, which have none: `out`."""
    path = path if path.name else path / "out"
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
