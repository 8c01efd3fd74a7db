"""The directory in which the harness stores what it makes on this machine, and locks between the processes that write
it.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness.errors import EnvironmentUnusable

_REMOVING = ".removing-"


def home(environ: Mapping[str, str] = os.environ) -> Path:
    """Return `$HARNESS_HOME`, or else the platform's directory for user data. It is not created here."""
    if chosen := environ.get("HARNESS_HOME"):
        return Path(chosen).expanduser().absolute()
    if data := environ.get("XDG_DATA_HOME"):
        return Path(data).absolute() / "rlhf-harness"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "rlhf-harness"
    return Path.home() / ".local" / "share" / "rlhf-harness"


def checked() -> Path:
    """Return the home, which need not be there. Raises EnvironmentUnusable where it is something else than a
    directory.
    """
    path = home()
    there = next((each for each in (path, *path.parents) if each.exists()), path)
    if there.exists() and not there.is_dir():
        variable = next((name for name in ("HARNESS_HOME", "XDG_DATA_HOME") if os.environ.get(name)), "HOME")
        raise EnvironmentUnusable(
            f"the harness's home {path} cannot be: {there} is no directory",
            fix=f"unset {variable}   # takes the platform's directory; or export {variable}=DIR",
        )
    return path


def directory(name: str) -> Path:
    """Return a directory of the home, and create it. Raises EnvironmentUnusable where the home cannot be written."""
    path = home() / name
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EnvironmentUnusable(
            f"the harness cannot write its home {home()}: {error.strerror}",
            fix="export HARNESS_HOME=DIR   # that you can write",
        ) from error
    return path


@contextmanager
def locked(name: str, waiting: Callable[[], None] = lambda: None) -> Iterator[int]:
    """Hold the lock of that name across processes, and yield its file descriptor.

    A child process that inherits the descriptor also holds the lock. So when this process is killed and its installer
    survives, the next creation waits for the installer instead of writing at the same time. `waiting` is called once
    where another process holds the lock.
    """
    descriptor = os.open(directory("locks") / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


def write_json(path: Path, value: Any) -> None:
    """Replace the file atomically: a reader sees the old content or the new one."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(value, file, indent=2, sort_keys=True)
            file.write("\n")
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def replace_tree(new: Path, path: Path) -> None:
    """Rename the directory `new` to `path`, and remove the directory that had this name."""
    old = _aside(path)
    if path.exists():
        path.rename(old)
    new.rename(path)
    shutil.rmtree(old, ignore_errors=True)


def remove_tree(path: Path) -> None:
    """Remove a directory where it exists. It is renamed first, so that no partly removed directory has the real
    name.
    """
    if path.exists():
        path.rename(_aside(path))
        shutil.rmtree(_aside(path), ignore_errors=True)


def sweep(path: Path) -> None:
    """Finish removals of that name that were interrupted by a kill. The caller holds the lock of the name."""
    for leftover in path.parent.glob(f"{_REMOVING}{path.name}@*"):
        shutil.rmtree(leftover, ignore_errors=True)


def _aside(path: Path) -> Path:
    return path.with_name(f"{_REMOVING}{path.name}@{os.getpid()}")
