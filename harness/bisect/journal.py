"""The steps of a bisection on disk, one JSON line each, so that an interrupted search can be resumed."""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import dataclass, field
from errno import ENOSPC
from pathlib import Path

from harness.bisect.request import Request
from harness.errors import BadInput
from harness.other_paths import another_out
from probes import limits
from probes.files import folder_or_nothing, remove_empty
from reports import codec
from reports.bisect_model import Step

NAME = "bisect.jsonl"


@dataclass
class Journal:
    """The journal file of one bisection. Its first line is the request; a line per step follows as soon as it is
    judged.

    folder: the directory of the bisection.
    request: what is bisected, and with which options.
    descriptor: the open and locked journal. The lock is needed because two searches in one folder would remove each
    other's recordings.
    steps: the judged steps, in order.
    """

    folder: Path
    request: Request
    descriptor: int
    steps: list[Step] = field(default_factory=list)

    @staticmethod
    def begin(folder: Path, request: Request) -> Journal:
        """Start a journal in `folder`, or resume the same bisection there. Raises BadInput where the folder holds
        another one.
        """
        if (folder / NAME).is_file():
            resumed = Journal.load(folder)
            if resumed.request != request:
                resumed.close()
                raise BadInput(f"{folder} holds another bisection: {resumed.request.command}", fix=another_out(folder))
            return resumed
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise BadInput(f"{folder} is there and holds no bisection", fix=another_out(folder))
        try:
            with folder_or_nothing(folder, whole=True):
                journal = Journal(folder, request, _locked(folder, os.O_CREAT))
                journal._append(codec.builtins(request))
        except OSError as error:
            raise BadInput(f"{folder} cannot be written: {error.strerror}", fix="--out DIR") from error
        return journal

    @staticmethod
    def load(folder: Path) -> Journal:
        """Read the journal of an interrupted bisection and drop a torn last line. Raises BadInput where there is no
        journal.
        """
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
            raise BadInput(f"{path} is not a journal of a bisection: {error}", fix=another_out(path.parent)) from error

    def recorded(self, subject: str, again: bool) -> Step | None:
        return next((step for step in self.steps if (step.subject, step.again) == (subject, again)), None)

    def add(self, step: Step) -> None:
        self._append(codec.builtins(step))
        self.steps.append(step)

    def close(self) -> None:
        """Release the lock. A folder that holds a journal and nothing else is removed, with an empty one above it."""
        if [entry.name for entry in self.folder.iterdir()] == [NAME]:
            (self.folder / NAME).unlink()
            remove_empty(self.folder)
        os.close(self.descriptor)

    def _append(self, values: object) -> None:
        line = json.dumps(values).encode() + b"\n"
        if os.write(self.descriptor, line) < len(line):  # a single write: a process that is killed loses no judged step
            raise OSError(ENOSPC, os.strerror(ENOSPC), str(self.folder / NAME))


def _locked(folder: Path, create: int = 0) -> int:
    descriptor = os.open(folder / NAME, os.O_WRONLY | create | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise BadInput(
            f"another process is searching in {folder}", fix=f"{another_out(folder)}   # or wait for it"
        ) from error
    return descriptor
