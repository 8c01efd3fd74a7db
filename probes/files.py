"""Files that only their owner may read: recordings, evidence and reports hold prompts, paths and command lines."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

FILE_MODE = 0o600  # its owner reads and writes it, and nobody else
FOLDER_MODE = 0o700  # and enters it


def make_folder(folder: str | os.PathLike[str]) -> None:
    """Make a folder that only its owner may enter, and those above it where they are missing."""
    path = Path(folder)
    if path.is_dir():
        return
    make_folder(path.parent)
    path.mkdir(mode=FOLDER_MODE, exist_ok=True)


def write_whole(file: str | os.PathLike[str], data: bytes, mode: int = FILE_MODE) -> None:
    """Write a file whole or not at all, for its owner alone, or with `mode`. Raises OSError."""
    target = Path(file)
    handle, temporary = tempfile.mkstemp(prefix=".", suffix=".part", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        os.chmod(temporary, mode)
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
