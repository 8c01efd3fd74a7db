"""A night as GitHub's workflow commands: an annotation at the workflow's run for every cell that changed.

An annotation's text ends with the line, and `%`, `,` and `:` mean something in it: they become percent codes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from reports.renderers import Renderer
from reports.sections import nightly as arrange
from reports.text import clean

if TYPE_CHECKING:
    from reports.nightly_model import Night
    from reports.renderers import Subject


class GithubRenderer(Renderer):
    name = "github"
    suffix = ".annotations"
    takes = frozenset({"nightly"})

    def render(self, subject: Subject) -> str:
        night = cast("Night", subject)
        lines = []
        for one in arrange.noteworthy(night):
            level = "error" if one in night.alarms else "warning" if one.status == "FLAKY" else "notice"
            title = _escape(f"{one.status}: {one.cell}", ",:")
            lines.append(f"::{level} title={title}::{_escape('; '.join(arrange.lines(one)) or one.reason)}")
        return "".join(f"{line}\n" for line in [*lines, _escape(f"{night.reason} (exit code {night.exit_code})")])


def _escape(text: str, more: str = "") -> str:
    return "".join(f"%{ord(char):02X}" if char in f"%\r\n{more}" else char for char in clean(text))
