"""What `harness doctor` prints: what passed, what was not checked, then what will break, worst last, and one line.

The least important comes first: a terminal shows the end. A command that fixes something stands whole on its own line.
"""

from __future__ import annotations

import io
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from reports.doctor_model import SEVERITIES, Hazard, Passed, Report, Unchecked
from reports.layout import Page
from reports.pipe import outlive_reader
from reports.text import clean

_MARKS = {"error": ("✗", "bold red"), "warning": ("!", "bold yellow"), "info": ("·", "bold cyan")}
_TITLES = {"error": "Will fail", "warning": "May fail", "info": "Good to know"}
_LABEL = 8  # cells of "seen", "why", "fix" with their margins


def print_report(report: Report, console: Console, *, verbose: bool = False) -> None:
    """Print the whole report; `verbose` adds what the passed checks measured. A reader that left is no error."""
    with outlive_reader(console):
        _print(Page(console), report, verbose)


def render(report: Report, width: int = 100, *, verbose: bool = False) -> str:
    """The same without colour, as a pipe gets it."""
    file = io.StringIO()
    console = Console(file=file, width=width, color_system=None, force_terminal=False, legacy_windows=False)
    print_report(report, console, verbose=verbose)
    return file.getvalue()


def _print(page: Page, report: Report, verbose: bool) -> None:
    page.prose(
        Text.assemble(
            ("harness doctor", "bold"),
            ("   looked at ", "dim"),
            clean(", ".join(report.places)),
            (f"   {report.seconds:.1f} s", "dim"),
        )
    )
    _passed(page, report.passed, {item.check for item in report.hazards}, len(report.places), verbose)
    _unchecked(page, report.unchecked)
    for severity in reversed(SEVERITIES):
        found = [item for item in report.hazards if item.severity == severity]
        if found:
            page.heading(
                _TITLES[severity], f"{len(found)} {severity}{'s' if len(found) > 1 and severity != 'info' else ''}"
            )
            for item in found:
                _hazard(page, item, len(report.places))
    _last(page, report)


def _passed(page: Page, passed: Sequence[Passed], failed: set[str], places: int, verbose: bool) -> None:
    names = list(dict.fromkeys(clean(item.check) for item in passed if item.check not in failed))
    if not passed or not (names or verbose):
        return
    page.heading("Passed", f"{len(names)} checks" + ("" if verbose else "; --verbose shows what was measured"))
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


def _unchecked(page: Page, unchecked: Sequence[Unchecked]) -> None:
    """Those with one reason and one remedy together: without a cluster a whole family of checks has the same."""
    if not unchecked:
        return
    page.heading("Not checked", "which is not a pass")
    together: dict[tuple[str, str], list[Unchecked]] = {}
    for item in unchecked:
        together.setdefault((item.reason, item.fix), []).append(item)
    for (reason, fix), items in together.items():
        names = ", ".join(dict.fromkeys(clean(item.check) for item in items))
        where = _where(tuple(dict.fromkeys(place for item in items for place in item.where)))
        text = Text.assemble((names, "bold"), f"  {clean(reason)}", (f"  ({where})", "dim"))
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
    """A command whole on one line, its remark behind `#` dim."""
    if command:
        line, hash_, remark = clean(command).partition("   # ")
        page.line(Text.assemble((f"  {name}".ljust(_LABEL), "dim"), (line, "green"), (f"{hash_}{remark}", "dim")))


def _where(places: tuple[str, ...]) -> str:
    shown = ", ".join(clean(place) for place in places[:4])
    return f"{shown} and {len(places) - 4} more" if len(places) > 4 else shown


def _last(page: Page, report: Report) -> None:
    """On a terminal the counts, then the outcome; in a pipe both on the last line, for `tail -1`."""
    worst = next((severity for severity in SEVERITIES if any(item.severity == severity for item in report.hazards)), "")
    style = {"error": "red", "warning": "yellow"}.get(worst, "green")
    name = {"error": "WILL FAIL", "warning": "MAY FAIL"}.get(worst, "READY")
    page.line()
    page.rule("━", style)
    if page.console.is_terminal:
        page.prose(Text(report.reason, "bold"))
        page.line(
            Text.assemble((f" {name} ", f"bold reverse {style}"), (f"  exit code {report.exit_code}", f"bold {style}"))
        )
    else:
        page.line(f"{name} (exit code {report.exit_code}): {report.reason}")
