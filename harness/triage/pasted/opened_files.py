"""The files below a folder, and archives among them, which are unpacked within one bound."""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

from harness.errors import BadInput
from harness.triage import archive
from harness.triage.archive import MAX_FILES

MAX_SKIPPED = 4  # files that are no plain files, by name
MAX_NESTED = 3  # archives in archives in archives
MAX_PACKED = 256 << 20  # bytes of an archive that nobody named; a larger one may be a data set


def unpacked_archives(folder: Path, enters: Callable[[Path], bool], refused: list[str]) -> dict[Path, Path]:
    """What the archives below a folder unpack to, and archives within these: archive -> folder. Only folders that
    `enters` accepts are searched. A sentence for each archive that is refused joins `refused`."""
    room, level = archive.Room(), [folder]
    folders: dict[Path, Path] = {}
    for _ in range(MAX_NESTED):
        files = [file for each in level for file in _archives(each, enters)]
        large = [file for file in files if file.stat().st_size > MAX_PACKED]
        refused += [
            f"{file} has more than {MAX_PACKED >> 20} MiB: not unpacked, unless it is named alone" for file in large
        ]
        files = [file for file in files if file not in large]
        outcomes = archive.unpack_all(files, room) if files else []
        refused += [error.message for error in outcomes if isinstance(error, BadInput)]
        opened = {file: outcome for file, outcome in zip(files, outcomes, strict=True) if isinstance(outcome, Path)}
        folders |= opened
        level = [*opened.values()]
    return folders


def _archives(folder: Path, enters: Callable[[Path], bool]) -> list[Path]:
    files = (entry for entry in islice(entries(folder, enters), MAX_FILES) if entry.is_file(follow_symlinks=False))
    return [Path(file) for file in files if archive.in_folder(file)]


def plain_files(path: Path, skipped: list[str]) -> list[Path]:
    """The file, or the plain files below a folder. Hidden files, links, pipes, sockets and devices are left out."""
    if path.is_file():
        return [path]
    if path.exists() and not path.is_dir():
        raise BadInput(
            f"{path} is {_sort(path)}: it is not waited for",
            fix=f"timeout 5 cat {shlex.quote(str(path))} | harness triage -",
        )
    files: list[str] = []
    special: list[Path] = []
    for entry in entries(path):
        if entry.is_file(follow_symlinks=False):
            if not archive.in_folder(entry):  # it is unpacked, and read as a folder of its own
                files.append(entry.path)
        else:
            special.append(Path(entry.path))
        if len(files) + len(special) == MAX_FILES:
            skipped.append(f"{path} has more than {MAX_FILES:,} files: the others were not read")
            break
    if special:
        names = [f"{_printable(file.relative_to(path))} ({_sort(file)})" for file in sorted(special)[:MAX_SKIPPED]]
        more = f" and {len(special) - MAX_SKIPPED:,} more" if len(special) > MAX_SKIPPED else ""
        skipped.append(f"left out of {path}, because only plain files are read: {', '.join(names)}{more}")
    return list(map(Path, sorted(files)))


def entries(folder: str | Path, enters: Callable[[Path], bool] = lambda below: True) -> Iterator[os.DirEntry[str]]:
    """What lies in a folder and in those below it that `enters` accepts. Hidden names are left out, links are not
    followed."""
    try:
        below = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except PermissionError:
        return
    for entry in below:
        if entry.name.startswith("."):
            continue
        if entry.is_dir(follow_symlinks=False):
            if enters(Path(entry.path)):
                yield from entries(entry.path, enters)
        else:
            yield entry


def _printable(path: Path) -> str:
    return os.fsencode(path).decode(errors="backslashreplace")


def _sort(file: Path) -> str:
    """What a file is that is no plain file, in words."""
    mode = file.lstat().st_mode
    words = ((stat.S_ISLNK, "a link"), (stat.S_ISFIFO, "a pipe"), (stat.S_ISSOCK, "a socket"))
    return next((word for is_sort, word in words if is_sort(mode)), "a device")
