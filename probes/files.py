"""Files that only their owner may read: recordings, evidence and reports hold prompts, paths and command lines."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from pathlib import Path
from typing import BinaryIO

FILE_MODE = 0o600  # only its owner can read or write it
FOLDER_MODE = 0o700  # only its owner can list or enter it


def make_folder(folder: str | os.PathLike[str]) -> None:
    """Make a folder that only its owner may enter, and the missing ones above it."""
    path = Path(folder)
    if path.is_dir():
        return
    make_folder(path.parent)
    path.mkdir(mode=FOLDER_MODE, exist_ok=True)


def make_new_folder(folder: str | os.PathLike[str]) -> None:
    """Make a folder that is not there yet, for its owner alone. Raises FileExistsError where it is."""
    path = Path(folder)
    make_folder(path.parent)
    path.mkdir(mode=FOLDER_MODE)


def open_new(file: str | os.PathLike[str]) -> BinaryIO:
    """Open a file for writing that only its owner may read; what it held is gone. A device or a pipe keeps its mode.
    Raises OSError.
    """
    stream = os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE), "wb")
    if stat.S_ISREG(os.fstat(stream.fileno()).st_mode):  # /dev/null is everybody's
        os.fchmod(stream.fileno(), FILE_MODE)  # of a file that was there
    return stream


def close_to_others(folder: str | os.PathLike[str]) -> None:
    """Take from everybody but the owner what a library wrote into a folder of ours."""
    for place, _, names in os.walk(folder):
        os.chmod(place, FOLDER_MODE)
        for name in names:
            if not os.path.islink(file := os.path.join(place, name)):
                os.chmod(file, FILE_MODE)


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
