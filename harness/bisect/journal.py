"""The steps of a bisection on disk, one line each, so that a search that was cut goes on where it was."""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass, field
from pathlib import Path

from harness.bisect.request import Request
from harness.errors import BadInput
from reports import codec
from reports.bisect_model import Step

NAME = "bisect.jsonl"


@dataclass
class Journal:
    """`folder`: of the bisection; its journal begins with the request, and a step follows as soon as it is judged."""

    folder: Path
    request: Request
    steps: list[Step] = field(default_factory=list)

    @staticmethod
    def begin(folder: Path, request: Request) -> Journal:
        """Of a new bisection in `folder`, or of the same one that was cut there. Raises BadInput."""
        if (folder / NAME).is_file():
            found = Journal.load(folder)
            if found.request != request:
                raise BadInput(f"{folder} holds another bisection: {found.request.command}", fix="choose another --out")
            return found
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise BadInput(f"{folder} is there and holds no bisection", fix="choose another --out")
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadInput(f"{folder} cannot be made: {error.strerror}") from error
        journal = Journal(folder, request)
        journal._append(codec.builtins(request))
        return journal

    @staticmethod
    def load(folder: Path) -> Journal:
        """Of a bisection that was cut. A torn last line is dropped. Raises BadInput where there is none."""
        path = folder / NAME
        try:
            whole, _, torn = path.read_bytes().rpartition(b"\n")
        except OSError as error:
            raise BadInput(f"{folder} holds no bisection: {path}: {error.strerror}", fix="--resume OUT") from error
        if torn:
            os.truncate(path, len(whole) + 1)
        try:
            first, *rest = (json.loads(line) for line in whole.splitlines())
            return Journal(folder, codec.convert(first, Request), [codec.convert(one, Step) for one in rest])
        except ValueError as error:
            raise BadInput(f"{path} is no journal of a bisection: {error}", fix="choose another --out") from error

    def known(self, subject: str, again: bool) -> Step | None:
        return next((one for one in self.steps if (one.subject, one.again) == (subject, again)), None)

    def add(self, step: Step) -> None:
        self._append(codec.builtins(step))
        self.steps.append(step)

    def discard(self) -> None:
        """Leave nothing behind where nothing was compared."""
        if not self.steps:
            (self.folder / NAME).unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # not empty: a recording of the good end
                self.folder.rmdir()

    def _append(self, values: object) -> None:
        line = json.dumps(values).encode() + b"\n"
        descriptor = os.open(self.folder / NAME, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, line)  # one write: a kill loses no step that was judged
        finally:
            os.close(descriptor)
