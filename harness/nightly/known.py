"""`known.toml`: accepted differences, each with a reason, an owner and a day on which it expires."""

from __future__ import annotations

import datetime
import fnmatch
import os
import shlex
from collections.abc import Sequence
from pathlib import Path

import pydantic

from harness.errors import BadInput
from harness.nightly.matrix import Strict, parsed, read
from reports.nightly_model import Change


class Known(Strict):
    """One accepted difference.

    cell, cause: names, which may contain wildcards. `cause` is the name of a cause, or of another problem as the
    report prints it, such as `max_delta_logprob`.
    reason: why the difference is accepted.
    owner: the person to ask.
    expires: the last day on which it is accepted.
    """

    cell: str
    cause: str
    reason: str = pydantic.Field(min_length=1)
    owner: str = pydantic.Field(min_length=1)
    expires: datetime.date

    def covers(self, cell: str, change: Change) -> bool:
        return fnmatch.fnmatchcase(cell, self.cell) and fnmatch.fnmatchcase(change.subject, _literal(self.cause))

    @property
    def text(self) -> str:
        return f"{self.cause}: {self.reason} ({self.owner}, until {self.expires})"


class _File(Strict):
    known: tuple[Known, ...] = ()


def load(path: Path) -> tuple[Known, ...]:
    """Read a file of known differences, which may be empty. Raises BadInput."""
    if not os.path.lexists(path):
        raise BadInput(
            f"{path} does not exist, which the matrix names as `known`",
            fix=f"touch {shlex.quote(str(path))}   # an empty one, or leave out the line `known`",
        )
    return parsed(_File, read(path), str(path)).known


def split(
    cell: str, problems: Sequence[Change], entries: Sequence[Known], today: datetime.date
) -> tuple[tuple[Change, ...], tuple[Known, ...], tuple[Change, ...]]:
    """Return (the problems that are not known, the entries that cover others, a problem per expired entry).

    A failing verdict counts as known where all of its causes are known.
    """
    used = [entry for entry in entries if any(entry.covers(cell, problem) for problem in problems)]
    valid = [entry for entry in used if entry.expires >= today]
    unknown = [problem for problem in problems if not any(entry.covers(cell, problem) for entry in valid)]
    causes = [problem for problem in problems if problem.kind == "cause"]
    if causes and not any(cause in unknown for cause in causes):
        unknown = [problem for problem in unknown if problem.kind != "verdict"]
    expired = tuple(
        Change("known", entry.cause, f"known until {entry.expires}, which is past: {entry.reason} ({entry.owner})")
        for entry in used
        if entry.expires < today
    )
    return tuple(unknown), tuple(valid), expired


def _literal(cause: str) -> str:
    """Return the pattern with literal brackets: in a cause's detail they are no wildcard."""
    return cause.replace("[", "[[]")
