"""Checks of a path that should be a run directory, with the error where it is none.

Only the file system is needed: a wrong argument is refused before an extra is required.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection, Sequence
from pathlib import Path

from harness.errors import BadInput
from harness.nearest_run import is_one_of, not_a_run
from probes.format import EVENTS, SIDES, TOKENS, FormatError, read_manifest


def is_run(path: Path) -> bool:
    return os.path.isfile(path / "run.json")  # false for invalid paths too, for which Path.is_file raises


def no_run(
    path: Path, named: str | os.PathLike[str] = "", *, alone: bool = False, besides: Collection[Path] = ()
) -> BadInput:
    """Return the error for a path that is not a run; it names the runs where the path is the directory of a pair.

    `named`: the user's name for it, where that is a bundle. `alone`: it was given for a pair of runs. `besides`: the
    runs that the command has already.
    """
    name = str(named or path)
    if os.path.isfile(path / "evidence.json"):
        return BadInput(f"{name} is evidence of a hang, not a run", fix=f"harness triage {shlex.quote(name)}")
    sides = [side for side in SIDES if is_run(path / side)]
    if not sides:
        return not_a_run(f"{name} {_fault(path)}", path, named, besides=besides)
    free = [side for side in sides if not is_one_of(path / side, besides)]
    candidate = " CANDIDATE" if alone else ""
    return BadInput(
        f"{name} is not a run directory: it has no run.json; it holds the runs {' and '.join(sides)}",
        fix=f"{shlex.quote(str(Path(name) / [*free, *sides][0]))}{candidate}",
        instead=name,
    )


def no_runs(paths: Sequence[Path], names: Sequence[str | os.PathLike[str]]) -> list[BadInput]:
    """Return the error for each path that is no run with rollouts. The fixes of directories of pairs name other runs
    than the command has already.
    """
    refusals: list[BadInput] = []
    runs = [path for path in paths if is_run(path)]
    for path, name in zip(paths, names, strict=True):
        if not is_run(path):
            refusals.append(no_run(path, name, besides=runs))
            runs += [path / side for side in SIDES if not is_one_of(path / side, runs)][:1]
        elif refusal := no_rollouts(path, name):
            refusals.append(refusal)
    return refusals


def no_rollouts(path: Path, named: str | os.PathLike[str]) -> BadInput | None:
    """Return the error for a record of `harness watch`, which has a run.json but no samples to judge; None for
    others.
    """
    try:
        manifest = read_manifest(path)
    except FormatError:  # the judge reports what is damaged
        return None
    if manifest.get("watch") is not True or os.path.isdir(path / TOKENS):
        return None
    if manifest.get("index") is True and not os.path.isdir(path / EVENTS):  # `harness record` keeps an index
        return BadInput(
            f"nothing was recorded in {named}: no process of its command wrote an event",
            fix="harness record -- COMMAND   # with the command's first error mended",
        )
    return BadInput(
        f"{named} is a record of harness watch, without rollouts", fix=f"harness triage {shlex.quote(str(named))}"
    )


def no_pair(path: Path, named: str | os.PathLike[str]) -> BadInput:
    """Return the error for a path that was given alone and holds no pair of runs."""
    if not is_run(path):
        return no_run(path, named, alone=True)
    if refusal := no_rollouts(path, named):
        return refusal
    return BadInput(
        f"{named} is one run, and a comparison takes two", fix=f"harness diff {shlex.quote(str(named))} CANDIDATE"
    )


def _fault(path: Path) -> str:
    try:
        os.listdir(path)
    except FileNotFoundError:
        return "does not exist"
    except NotADirectoryError:
        return "is a file, and no bundle" if path.is_file() else "lies below a file, and that is no bundle"
    except (OSError, ValueError) as error:
        return f"cannot be read: {getattr(error, 'strerror', error)}"
    return "is not a run directory: it has no run.json"
