"""Files that are as private as the folder they lie in: what a folder hides from others, no file in it shows them."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

READABLE = 0o644  # at most: nobody else ever writes


def mode_in(folder: str | os.PathLike[str]) -> int:
    """The mode of a new file in `folder`: 0600 in a folder of 0700, 0640 in one of 0750; the umask takes off more."""
    return os.stat(folder).st_mode & READABLE | 0o600


def make_folder(folder: str | os.PathLike[str]) -> None:
    """Make a folder that is as private as the one it lies in, and those above it where they are missing."""
    path = Path(folder)
    if path.is_dir():
        return
    make_folder(path.parent)
    path.mkdir(mode=path.parent.stat().st_mode & 0o755 | 0o700, exist_ok=True)


def write_whole(file: str | os.PathLike[str], data: bytes, mode: int | None = None) -> None:
    """Write a file whole or not at all, as private as its folder, or with `mode`. Raises OSError."""
    target = Path(file)
    handle, temporary = tempfile.mkstemp(prefix=".", suffix=".part", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        os.chmod(temporary, mode_in(target.parent) & ~umask() if mode is None else mode)
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def umask() -> int:
    """Of this process, by the kernel's word: asking with umask(2) would change it for other threads."""
    try:
        with open("/proc/self/status") as status:
            return next(int(line.split()[1], 8) for line in status if line.startswith("Umask:"))
    except (OSError, StopIteration):  # not Linux
        return 0o022
