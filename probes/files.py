"""Files that only their owner may read: recordings, evidence and reports hold prompts, paths and command lines."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

FILE_MODE = 0o600  # only its owner can read or write it
FOLDER_MODE = 0o700  # only its owner can list or enter it


def make_folder(folder: str | os.PathLike[str]) -> None:
    """Make a folder that only its owner may enter, and the missing ones above it."""
    path = Path(folder)
    if path.is_dir():
        return
    make_folder(path.parent)
    path.mkdir(mode=FOLDER_MODE, exist_ok=True)


def write_whole(file: str | os.PathLike[str], data: bytes, mode: int = FILE_MODE) -> None:
    """Write a file completely or not at all. Only its owner may read it, unless `mode` says otherwise. Raises
    OSError.
    """
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
