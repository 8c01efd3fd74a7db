"""What to type in place of a path that holds no run. Only the file system is needed."""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection, Iterable
from pathlib import Path

from harness.errors import BadInput
from harness.other_paths import nearest_folder, similar_path
from probes.format import MANIFEST, SIDES

MAKES = (
    "harness record -- COMMAND   # makes a run of your own job; harness run and harness parity make those of a "
    "scenario, and harness triage PID evidence of a hang"
)


def not_a_run(
    message: str, path: Path, named: str | os.PathLike[str] = "", *, besides: Collection[Path] = ()
) -> BadInput:
    """Return the error for a path without a run. Its fix is the command with the run that was probably meant, else a
    look at what there is, else the command that makes a run.

    `named`: the user's name for the path, where it differs. `besides`: the runs that the command has already.
    """
    name = str(named or path)
    if (meant := _nearest(path, besides)) is not None:
        return BadInput(message, fix=shlex.quote(str(meant)), instead=name)
    if not os.path.lexists(path):
        return BadInput(message, fix=f"ls {shlex.quote(str(nearest_folder(path)))}   # holds no run of a similar name")
    return BadInput(message, fix=MAKES)


def what_there_is(folder: Path) -> str:
    """The command that shows what there is of a run, or of a comparison, that was ended early."""
    recorded = [folder / side for side in SIDES if _is_run(folder / side)]
    if len(recorded) == len(SIDES):
        return f"harness diff {shlex.quote(str(folder))}   # what there is"
    run = (recorded or [folder])[0]
    return f"harness report {shlex.quote(str(run))}   # what there is"


def is_one_of(path: Path, paths: Collection[Path]) -> bool:
    return os.path.realpath(path) in map(os.path.realpath, paths)


def _nearest(path: Path, besides: Collection[Path]) -> Path | None:
    """The run in which the path lies, else one right below it, else a neighbour with a similar name: a run, or a
    comparison of two."""

    def free(folders: Iterable[Path]) -> list[Path]:
        return [folder for folder in folders if _is_run(folder) and not is_one_of(folder, besides)]

    if within := free(path.parents):
        return within[0]
    if below := free(_folders(path)):
        return below[0]
    neighbours = [folder for folder in _folders(path.parent) if folder != path]
    pairs = [folder for folder in neighbours if any(_is_run(folder / side) for side in SIDES)]
    return similar_path(path, free(neighbours)) or similar_path(path, pairs)


def _folders(path: Path) -> list[Path]:
    try:
        return sorted(entry for entry in path.iterdir() if entry.is_dir())
    except (OSError, ValueError):  # no folder, or a name that no path can have
        return []


def _is_run(folder: Path) -> bool:
    return os.path.isfile(folder / MANIFEST)
