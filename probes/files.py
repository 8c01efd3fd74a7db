"""Files that only their owner may read: recordings, evidence and reports hold prompts, paths and command lines."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

FILE_MODE = 0o600  # only its owner can read or write it
FOLDER_MODE = 0o700  # only its owner can list or enter it
LEAST_BYTES = 1 << 20  # that must fit where a recording begins; one of ppo-tiny has some 3 MB


def make_folder(folder: str | os.PathLike[str]) -> None:
    """Make a folder that only its owner may enter, and the missing ones above it.

    Raises NotADirectoryError, whose text names the file, where one of them is a file, and OSError.
    """
    path = Path(folder)
    try:
        path.mkdir(mode=FOLDER_MODE, exist_ok=True)  # at once: another thread may make it between a question and this
    except FileExistsError as error:
        raise NotADirectoryError(errno.ENOTDIR, f"{path} is a file, not a folder", str(path)) from error
    except (FileNotFoundError, NotADirectoryError):
        make_folder(path.parent)
        path.mkdir(mode=FOLDER_MODE, exist_ok=True)


def make_new_folder(folder: str | os.PathLike[str]) -> None:
    """Make a folder that is not there yet, for its owner alone. Raises FileExistsError where it is."""
    path = Path(folder)
    make_folder(path.parent)
    path.mkdir(mode=FOLDER_MODE)


@contextlib.contextmanager
def folder_or_nothing(folder: str | os.PathLike[str], *, whole: bool = False) -> Iterator[Path]:
    """Make a folder and its missing parents. If the block raises, remove those of them that are empty, and with `whole`
    the folder with all its content, if it was made here. Raises OSError.
    """
    path = Path(folder)
    missing = [place for place in (path, *path.parents) if not place.exists()]
    try:
        make_folder(path)
        yield path
    except BaseException:
        if whole and path in missing:
            shutil.rmtree(path, ignore_errors=True)
        with contextlib.suppress(OSError):  # the first folder that is not empty ends this
            for place in missing:
                if place.exists():
                    place.rmdir()
        raise


def remove_empty(folder: Path) -> None:
    """Remove the empty folders in a folder, then the folder itself and the one above it where they are empty."""
    below = sorted((place for place in folder.rglob("*") if place.is_dir()), reverse=True)
    for place in (*below, folder, folder.absolute().parent):
        with contextlib.suppress(OSError):
            place.rmdir()


def try_writing(folder: Path) -> None:
    """Raise OSError where a folder has no room for a recording, before one begins."""
    with tempfile.TemporaryFile(dir=folder) as trial:
        trial.write(bytes(LEAST_BYTES))
        trial.flush()


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
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        if isinstance(error, OSError) and not error.filename:  # of a write to a full disk
            error.filename = str(target)
        raise
