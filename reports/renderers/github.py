"""GitHub's workflow commands: an annotation of the workflow run for a verdict, and for every cell of a night that
changed.

An annotation ends with its line, and `%`, `,` and `:` are special in it, so they become percent codes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from reports.model import Verdict
from reports.renderers import Renderer
from reports.sections import answer
from reports.sections import nightly as arrange
from reports.text import clean

if TYPE_CHECKING:
    from reports.nightly_model import Night
    from reports.renderers import Subject


class GithubRenderer(Renderer):
    name = "github"
    suffix = ".annotations"
    takes = frozenset({"nightly", "parity", "audit", "triage"})

    def render(self, subject: Subject) -> str:
        judged = cast("Verdict | Night", subject)
        lines = _verdict(judged) if isinstance(judged, Verdict) else _night(judged)
        return "".join(f"{line}\n" for line in [*lines, _escape(f"{judged.reason} (exit code {judged.exit_code})")])


def _verdict(verdict: Verdict) -> list[str]:
    """Return the annotation of a verdict. Anything but a pass is an error: a gate ends with its exit code."""
    summary = answer.of(verdict)
    level = "error" if verdict.exit_code else "notice"
    return [_annotation(level, summary.title, [summary.reason, *(f"{label}: {text}" for label, text in summary.parts)])]


def _night(night: Night) -> list[str]:
    lines = []
    for result in arrange.noteworthy(night):
        level = "error" if result in night.alarms else "warning" if result.status == "FLAKY" else "notice"
        lines.append(_annotation(level, f"{result.status}: {result.cell}", arrange.lines(result) or [result.reason]))
    return lines


def _annotation(level: str, title: str, texts: list[str]) -> str:
    return f"::{level} title={_escape(title, ',:')}::{_escape('; '.join(texts))}"


def _escape(text: str, more: str = "") -> str:
    return "".join(f"%{ord(char):02X}" if char in f"%\r\n{more}" else char for char in clean(text))
