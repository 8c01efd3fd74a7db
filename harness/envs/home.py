"""Where the harness keeps what it makes on this machine, and how processes that write there keep apart."""

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
    """`$HARNESS_HOME`, else the platform's directory for user data. Not created here."""
    if chosen := environ.get("HARNESS_HOME"):
        return Path(chosen).expanduser().absolute()
    if data := environ.get("XDG_DATA_HOME"):
        return Path(data).absolute() / "rlhf-harness"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "rlhf-harness"
    return Path.home() / ".local" / "share" / "rlhf-harness"


def directory(name: str) -> Path:
    """A directory of the home, created. Raises EnvironmentUnusable where the home cannot be written."""
    path = home() / name
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EnvironmentUnusable(
            f"the harness cannot write its home {home()}: {error.strerror}",
            fix="export HARNESS_HOME=<a directory that you can write>",
        ) from error
    return path


@contextmanager
def locked(name: str, waiting: Callable[[], None] = lambda: None) -> Iterator[int]:
    """Hold the lock of that name, across processes; yields its file descriptor.

    A child process that inherits the descriptor holds the lock with us: when we are killed and an installer survives
    us, the next creation waits for it instead of writing beside it. `waiting` is called once when the lock is taken.
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
    """Replace the file in one step: a reader sees the old content or the new, never half."""
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
    """Give the directory `new` the name `path`, in place of what had it."""
    old = _aside(path)
    if path.exists():
        path.rename(old)
    new.rename(path)
    shutil.rmtree(old, ignore_errors=True)


def remove_tree(path: Path) -> None:
    """Remove a directory, if it is there. It is renamed first, so that a half-removed one never has a real name."""
    if path.exists():
        path.rename(_aside(path))
        shutil.rmtree(_aside(path), ignore_errors=True)


def sweep(path: Path) -> None:
    """Finish removals of that name whose process was killed in the middle. The caller holds the lock of the name."""
    for leftover in path.parent.glob(f"{_REMOVING}{path.name}@*"):
        shutil.rmtree(leftover, ignore_errors=True)


def _aside(path: Path) -> Path:
    return path.with_name(f"{_REMOVING}{path.name}@{os.getpid()}")
