"""The steps of a bisection on disk, one line each, so that a search that was cut goes on where it was."""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import dataclass, field
from errno import ENOSPC
from pathlib import Path

from harness.bisect.request import Request
from harness.errors import BadInput
from probes import limits
from probes.files import make_folder
from reports import codec
from reports.bisect_model import Step

NAME = "bisect.jsonl"


@dataclass
class Journal:
    """`folder`: of the bisection; its journal begins with the request, and a step follows as soon as it is judged.

    `descriptor`: of the journal, locked: two searches in one folder would remove each other's recordings.
    """

    folder: Path
    request: Request
    descriptor: int
    steps: list[Step] = field(default_factory=list)

    @staticmethod
    def begin(folder: Path, request: Request) -> Journal:
        """Of a new bisection in `folder`, or of the same one that was cut there. Raises BadInput."""
        if (folder / NAME).is_file():
            resumed = Journal.load(folder)
            if resumed.request != request:
                resumed.close()
                raise BadInput(
                    f"{folder} holds another bisection: {resumed.request.command}", fix="choose another --out"
                )
            return resumed
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise BadInput(f"{folder} is there and holds no bisection", fix="choose another --out")
        try:
            make_folder(folder)
            journal = Journal(folder, request, _locked(folder, os.O_CREAT))
        except OSError as error:
            raise BadInput(f"{folder} cannot be written: {error.strerror}", fix="--out DIR") from error
        journal._append(codec.builtins(request))
        return journal

    @staticmethod
    def load(folder: Path) -> Journal:
        """Of a bisection that was cut. A torn last line is dropped. Raises BadInput where there is none."""
        path = folder / NAME
        try:
            descriptor = _locked(folder)
            complete, _, torn = limits.read_file(path).rpartition(b"\n")
        except OSError as error:
            raise BadInput(f"{folder} holds no bisection: {path}: {error.strerror}", fix="--resume OUT") from error
        if torn:
            os.truncate(path, len(complete) + 1)
        try:
            first, *step_records = (json.loads(line) for line in complete.splitlines())
            steps = [codec.convert(record, Step) for record in step_records]
            return Journal(folder, codec.convert(first, Request), descriptor, steps)
        except ValueError as error:
            os.close(descriptor)
            raise BadInput(f"{path} is not a journal of a bisection: {error}", fix="choose another --out") from error

    def recorded(self, subject: str, again: bool) -> Step | None:
        return next((step for step in self.steps if (step.subject, step.again) == (subject, again)), None)

    def add(self, step: Step) -> None:
        self._append(codec.builtins(step))
        self.steps.append(step)

    def close(self) -> None:
        """Let others search in the folder. Leaves nothing behind where nothing was recorded."""
        if [entry.name for entry in self.folder.iterdir()] == [NAME]:
            (self.folder / NAME).unlink()
            self.folder.rmdir()
        os.close(self.descriptor)

    def _append(self, values: object) -> None:
        line = json.dumps(values).encode() + b"\n"
        if os.write(self.descriptor, line) < len(line):  # one write: a kill loses no step that was judged
            raise OSError(ENOSPC, os.strerror(ENOSPC), str(self.folder / NAME))


def _locked(folder: Path, create: int = 0) -> int:
    descriptor = os.open(folder / NAME, os.O_WRONLY | create | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise BadInput(
            f"another process is searching in {folder}", fix="wait for it, or choose another --out"
        ) from error
    return descriptor
