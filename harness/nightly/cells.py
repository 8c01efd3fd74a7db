"""Run each cell in a process of its own. A cell that dies, hangs or is killed loses only its own verdict."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

from harness import verdict_file
from harness.cluster.launch import nothing_left
from harness.envs.install import end
from harness.errors import ERROR_FILE, STARTER
from harness.nightly.matrix import Cell, Pair, Suite
from harness.nightly.observation import Observation, failed, observed, of_suite
from probes.files import make_folder, open_new
from reports.model import Verdict

GRACE_S = 30.0  # the time for a cell to end its cluster after SIGTERM, before its process group is killed
COMMAND = (sys.executable, "-m", "harness.entry")
_ERROR = "error.json"
Attempt = Callable[[Cell, Path, Pair | None], Observation]  # `attempt`, here or on another machine


def run(cell: Cell, folder: Path, attempt: Attempt, *, pair: Pair | None = None) -> Observation:
    """Run a cell, and repeat it up to its number of retries while it gives no verdict.

    folder: gets one subfolder per attempt, with the recording and the output.
    pair: engines that replace those of the cell.
    """
    for number in range(1, cell.what.retries + 2):
        observation = attempt(cell, folder / f"attempt-{number}", pair)
        if not observation.error:
            break
    return observation


def attempt(cell: Cell, place: Path, pair: Pair | None, command: Sequence[str] = ()) -> Observation:
    """Run a cell once and read the verdict that it wrote. `command`: as for `launch`."""
    recording = place / "recording"
    code, seconds = launch(cell.arguments(recording, pair=pair), place, cell.limit_s, command=command)
    if code is None:
        return failed(f"ended at its limit of {cell.what.limit}", seconds=seconds, recording=str(place))
    try:
        return _read(cell, place, recording, seconds)
    except (OSError, ValueError, KeyError, TypeError) as error:
        return failed(no_verdict(code, place, error), seconds=seconds, recording=str(place))


def folder_name(cell: Cell) -> str:
    """Return the cell's name in a form that is valid for a folder."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", cell.name).lstrip(".")[:120]


def launch(
    words: Sequence[str],
    place: Path,
    limit_s: float,
    environ: Mapping[str, str] | None = None,
    command: Sequence[str] = (),
) -> tuple[int | None, float]:
    """(exit code, None at the time limit; seconds) of `harness WORDS` as a process of its own, which ends with this
    one however that ends; output, log and error lie in `place`. `command`: what is in place of `harness`; empty:
    COMMAND."""
    make_folder(place)
    started = time.monotonic()
    cell_variables = {ERROR_FILE: str(place.resolve() / _ERROR), STARTER: str(os.getpid())}
    environ = {**(os.environ if environ is None else environ), **cell_variables}
    with open_new(place / "output.json") as output, open_new(place / "log.txt") as log:
        code = process([*(command or COMMAND), *words], limit_s, output=output, log=log, environ=environ)
    return code, time.monotonic() - started


def process(
    argv: Sequence[str],
    limit_s: float,
    *,
    output: IO[bytes],
    log: IO[bytes],
    environ: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> int | None:
    """Run a command in a session of its own, and return its exit code, or None at the time limit.

    All processes that it started end with it.
    """
    with nothing_left():
        started = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=output, stderr=log, text=True, start_new_session=True, env=environ,
            cwd=folder,
        )  # fmt: skip
        try:
            return started.wait(timeout=limit_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            end(started, GRACE_S)  # also ends what the process left in its group


def no_verdict(code: int, place: Path, error: Exception | None = None) -> str:
    """Return why a process that `launch` ran gave no verdict. `error` is the error from reading the verdict."""
    ended = f"ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
    why = "" if error is None or isinstance(error, FileNotFoundError) else f"unreadable: {error}"
    with contextlib.suppress(OSError, ValueError, KeyError):  # the process wrote no error file
        why = json.loads((place / _ERROR).read_text(encoding="utf-8"))["message"]
    return f"{ended} and wrote no verdict" + (f": {why}" if why else "")


def _read(cell: Cell, place: Path, recording: Path, seconds: float) -> Observation:
    if isinstance(cell.what, Suite):
        result = json.loads((place / "output.json").read_text(encoding="utf-8"))
        return of_suite(result, recording, seconds=seconds)
    data = json.loads((recording / verdict_file.NAME).read_text(encoding="utf-8"))
    return observed(Verdict.from_dict(data), recording, seconds=seconds)
