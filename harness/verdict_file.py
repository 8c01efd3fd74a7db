"""Reads a verdict that was written to a file."""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
from pathlib import Path

from harness.errors import BadInput
from harness.nearest_run import not_a_run
from probes import limits
from probes.format import SIDES
from reports.model import EXIT_CODES, RunSummary, Verdict

NAME = "verdict.json"
RECORDED = ("run.json", "events", "beats", *SIDES)  # in a folder that a run, a pair or a watch was recorded into
AGAIN = "harness diff BASELINE CANDIDATE   # judges the recordings again"


def recorded(folder: Path) -> bool:
    """Whether a folder holds a recording, a pair or a watch, whose verdict no other command may replace."""
    return any(os.path.lexists(folder / name) for name in RECORDED)


def read(path: Path) -> Verdict:
    """The verdict in a file or in a directory's verdict.json, with the recordings beside it.

    Raises BadInput for a file that is no verdict of this version, or that was edited.
    """
    file = path / NAME if path.is_dir() else path
    verdict = _decoded(path, file)
    # A reservation changes the exit code under --strict alone.
    codes = {EXIT_CODES.get(verdict.verdict), verdict.strict.exit_code if verdict.reservations else None}
    if verdict.kind == "parity" and verdict.exit_code not in codes:
        raise BadInput(
            f"{file} says {verdict.verdict!r} with exit code {verdict.exit_code!r}: it was edited", fix=AGAIN
        )
    verdict = dataclasses.replace(verdict, paths=_moved(verdict.paths, file.parent))
    if verdict.parity is None:
        return verdict
    runs = [_beside(run, file.parent) for run in verdict.parity.runs]
    return dataclasses.replace(verdict, parity=dataclasses.replace(verdict.parity, runs=runs))


PAGES = (".html", ".htm")


def _decoded(path: Path, file: Path) -> Verdict:
    """The verdict in a file. `path`: the user's, the file or its directory. Raises BadInput."""
    try:
        values = json.loads(limits.read_file(file).decode())
        if not isinstance(values, dict) or "schema_version" not in values:
            raise not_a_run(f"{file} is JSON, but no verdict: it has no schema_version", file)
        return Verdict.from_dict(values)
    except (FileNotFoundError, NotADirectoryError) as error:
        what = f"holds neither a verdict ({NAME}) nor a run (run.json)" if path.is_dir() else "does not exist"
        sides = [side for side in SIDES if os.path.isfile(path / side / "run.json")]
        if sides:  # the directory of an interrupted pair
            what += f"; it holds the recording{'s' * (len(sides) > 1)} {' and '.join(sides)}"
        raise not_a_run(f"{path} {what}", path) from error
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        if file.suffix.lower() in PAGES and (file.parent / NAME).is_file():
            beside = shlex.quote(str(file.parent / NAME))
            raise BadInput(f"{file} is a page to open in a browser; the verdict is the file {NAME} beside it",
                           fix=beside, instead=str(path)) from error  # fmt: skip
        if file.suffix.lower() in PAGES:
            raise BadInput(f"{file} is a page to open in a browser, not a verdict, which is JSON",
                           fix=f"python3 -m webbrowser {shlex.quote(str(file))}") from error  # fmt: skip
        what = "is damaged: it is not JSON" if path.is_dir() else "is neither a verdict, which is JSON, nor a bundle"
        raise not_a_run(f"{file} {what}", file) from error
    except OSError as error:
        fix = f"ls -ld {shlex.quote(str(file))}   # who may read it"
        raise BadInput(f"{file} cannot be read: {error.strerror}", fix=fix) from error
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{file} is no verdict of this version: {error}", fix=AGAIN) from error


def _moved(paths: dict[str, str], folder: Path) -> dict[str, str]:
    """The paths of what is beside the verdict, where it is now. What was not moved or packed with it is left out."""
    # The verdict of a run or of evidence lies in that folder itself, the verdict of a pair above its two sides.
    root = ""
    if "run" in paths:
        root = "run"
    elif (folder / "evidence.json").is_file():
        root = "evidence"
    sides = [name for name in paths if os.path.isdir(folder / name)]
    if not root and not sides:
        return paths
    if root in paths and os.path.realpath(paths[root]) == os.path.realpath(folder):
        return paths
    beside = {name: folder / Path(path).name for name, path in paths.items()}
    beside |= {name: folder / name for name in sides}
    if root:
        beside[root] = folder
    return {name: str(path) for name, path in beside.items() if os.path.exists(path)}


def _beside(run: RunSummary, folder: Path) -> RunSummary:
    """The run with its current path: recordings are beside their verdict, and both may have been moved."""
    moved = folder / run.side
    # os.path.isdir is False for an impossible path, where Path.is_dir raises.
    return dataclasses.replace(run, path=str(moved)) if run.side and os.path.isdir(moved) else run
