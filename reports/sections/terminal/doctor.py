"""The details of a doctor's report on a terminal: what passed, what was not checked, then the hazards, the worst
last.

A fix can be copied: its command is broken only where a shell continues reading.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from reports.doctor_model import Hazard, Passed, Report
from reports.layout import Page
from reports.sections import doctor as arrange
from reports.text import agreeing, clean, counted

_MARKS = {
    "error": ("✗", "bold red"), "warning": ("!", "bold yellow"), "unknown": ("?", "bold yellow"),
    "info": ("·", "bold cyan"),
}  # fmt: skip
_COUNTED = ("error", "warning")  # severities that have a plural
_LABEL = 8  # cells of "seen", "why", "fix" with their margins


def details(page: Page, report: Report, verbose: bool) -> None:
    """Print everything between the answer and its repetition. `verbose` adds what the passed checks measured."""
    _passed(page, report.passed, {item.check for item in report.hazards}, len(report.places), verbose)
    _unchecked(page, report)
    for title, hazards in reversed(arrange.by_severity(report)):
        severity = hazards[0].severity
        severities = agreeing(len(hazards), severity, f"{severity}s") if severity in _COUNTED else severity
        page.heading(title, f"{len(hazards)} {severities}")
        for item in hazards:
            _hazard(page, item, len(report.places))


def _passed(page: Page, passed: Sequence[Passed], failed: set[str], places: int, verbose: bool) -> None:
    names = list(dict.fromkeys(clean(item.check) for item in passed if item.check not in failed))
    if not passed or not (names or verbose):
        return
    page.heading("Passed", counted(len(names), "check") + ("" if verbose else "; --verbose shows what was measured"))
    if not verbose:
        page.prose(Text(" · ".join(names), "dim"), Text("✓ ", "green"), "  ")
        return
    widths = [1, 18, page.columns - 21]
    for item in passed:
        where = f"  ({_where(item.where)})" if places > 1 or item.where[0].startswith("environment") else ""
        page.row(
            [Text("✓", "green"), clean(item.check), Text.assemble(clean(item.measured), (where, "dim"))],
            widths,
            ["", "", "measured"],
        )


def _unchecked(page: Page, report: Report) -> None:
    if not report.unchecked:
        return
    page.heading("Not checked", "which is not a pass")
    for checks, places, reason, fix in arrange.unchecked(report):
        names = ", ".join(map(clean, checks))
        text = Text.assemble((names, "bold"), f"  {clean(reason)}", (f"  ({_where(tuple(places))})", "dim"))
        page.prose(text, Text("○ ", "yellow"), "  ")
        _command(page, "ask", fix)


def _hazard(page: Page, item: Hazard, places: int) -> None:
    mark, style = _MARKS[item.severity]
    where = f"  ({_where(item.where)})" if places > 1 or item.where[0] != "this shell" else ""
    page.prose(
        Text.assemble((clean(item.what), "bold"), (f"  {clean(item.check)}", "cyan"), (where, "dim")),
        Text.assemble((mark, style), " "),
        "  ",
    )
    for name, text in (("seen", item.measured), ("why", item.why)):
        if text:
            page.prose(clean(text), Text(f"  {name}".ljust(_LABEL), "dim"), " " * _LABEL)
    _command(page, "fix", item.fix)


def _command(page: Page, name: str, command: str) -> None:
    """Print a command with its remark behind `#`, dimmed."""
    if command:
        line, _, remark = clean(command).partition("   # ")
        page.command(Text(line, "green"), Text(f"  {name}".ljust(_LABEL), "dim"), remark)


def _where(places: tuple[str, ...]) -> str:
    first_places = ", ".join(clean(place) for place in places[:4])
    return f"{first_places} and {len(places) - 4} more" if len(places) > 4 else first_places
