"""The frame of every verdict on a terminal or in a pipe: the answer in the first and the last line, details between.

Within the details the least important comes first, because a terminal shows the end. Every colour is accompanied by a
mark or a word.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from reports.layout import Page
from reports.model import UNDECIDED, Verdict
from reports.sections import answer
from reports.sections import parity as arrange
from reports.sections.terminal import doctor, parity
from reports.text import clean

if TYPE_CHECKING:
    from rich.console import Console

    from reports.doctor_model import Report
    from reports.model import Verdict


def show(subject: Verdict | Report, console: Console, *, verbose: bool) -> None:
    """Print it; the last line repeats the verdict with its exit code. A reader that closed the pipe is no error."""
    summary = answer.of(subject)
    with Page(console) as page:
        page.prose(Text.assemble((summary.title, f"bold {summary.tone}"), "  ", summary.reason))
        beyond = arrange.beyond_limits(subject) if isinstance(subject, Verdict) else []
        for sentence in beyond:  # right below the word EQUIVALENT, not only at the end
            page.prose(Text(f"beyond published limits: {sentence}", "bold yellow"), "  ", "    ")
        if of := _of(subject):
            page.prose(Text(of, "dim"), "  ", "    ")
        for sentence in summary.evidence:
            page.prose(sentence, "  ", "    ")
        _parts(page, summary)
        if isinstance(subject, Verdict):
            parity.details(page, subject, verbose)
            _warn(page, beyond)
            for title, items in reversed(arrange.warnings(subject)):
                parity.findings(page, title, items, "bold yellow")
        else:
            doctor.details(page, subject, verbose)
        _last(page, summary)


def _of(subject: Verdict | Report) -> str:
    """Return what was judged: both backends, or the places that the doctor looked at; "" for a hang."""
    if isinstance(subject, Verdict):
        return arrange.backends(subject)
    return f"{clean(', '.join(subject.places))}, {subject.seconds:.1f} s"


def _warn(page: Page, sentences: list[str]) -> None:
    if sentences:
        page.heading("Beyond published limits")
    for sentence in sentences:
        page.prose(Text(sentence, "bold yellow"), "  ", "    ")


def _parts(page: Page, summary: answer.Answer) -> None:
    width = max((len(label) for label, _ in summary.parts), default=0)
    for label, text in summary.parts:
        style = "bold" if label in ("cause", "culprit", "fix") else ""
        page.prose(Text(text, style), Text(f"  {label.ljust(width)}  ", "dim"))


def _last(page: Page, summary: answer.Answer) -> None:
    """Print the end: on a terminal the parts, the reason, then the verdict.

    In a pipe, the verdict with its reason is the last line, unbroken, for `tail -1`.
    """
    page.line()
    page.rule("━", summary.tone)
    _parts(page, summary)
    if page.console.is_terminal:
        page.prose(Text(summary.reason, "bold"))
        badge = (f" {summary.title} ", f"bold reverse {summary.tone}")
        code = "" if summary.exit_code == UNDECIDED else f"  exit code {summary.exit_code}"
        page.line(Text.assemble(badge, (code, f"bold {summary.tone}")))
    else:
        page.line(f"{answer.coded(summary.title, summary.exit_code)}: {summary.reason}")
