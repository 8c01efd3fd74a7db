"""The body of a triage verdict on a terminal: the processes, the waiters, the cycle, the culprits, what to try."""

from __future__ import annotations

from rich.text import Text

from reports.layout import Page
from reports.model import Triage
from reports.sections import triage as arrange
from reports.text import agreeing, clean

MARKS = {"culprit": ("✗", "bold red"), "suspect": ("?", "yellow"), "victim": ("○", "dim"), "bystander": ("·", "dim")}
MOST_PROCESSES = 16  # on a screen


def print_body(page: Page, triage: Triage, *, verbose: bool = False) -> None:
    """Print everything between the figures and the paths, the least important first. `verbose`: also the stacks."""
    if verbose:
        _stacks(page, triage)
    _processes(page, triage)
    _victims(page, triage)
    _cycle(page, triage)
    _culprits(page, triage)
    _next(page, triage)


def _processes(page: Page, triage: Triage) -> None:
    rows = arrange.processes(triage)
    if not rows:
        return
    printed = rows[:MOST_PROCESSES]
    more = len(triage.nodes) - len(printed)
    page.heading("Processes", f"{len(triage.nodes):,} in all" + (f", {more} not shown" if more else ""))
    label = min(32, max(len(row[1]) for row in printed))
    widths = [1, 9, label, page.columns - 1 - 9 - label - 3]
    for party, name, key, state in printed:
        mark, style = MARKS.get(party, MARKS["bystander"])
        state_text = state if name.startswith(key) or key in name else f"{state}  {key}"
        page.row([Text(mark, style), Text(party, style), name, state_text], widths, ["", "", "", "state"])


def _stacks(page: Page, triage: Triage) -> None:
    stacks = arrange.stacks(triage)
    if stacks:
        page.heading("Stacks", "of each main thread, innermost frame first")
    for stack in stacks:
        page.prose(Text(stack.who, "bold"), "  ", "  ")
        for frame in stack.frames:
            page.prose(frame, "    ", "      ")


def _victims(page: Page, triage: Triage) -> None:
    groups = arrange.victims(triage)
    if not groups:
        return
    page.heading("Waiting", "victims, not causes")
    for group in groups:
        page.prose(Text.assemble(group.line, (f"   {group.who}", "dim")), "  ", "    ")


def _cycle(page: Page, triage: Triage) -> None:
    steps = arrange.cycle(triage)
    if not steps:
        return
    page.heading("Cycle", "everybody waits for the next one; nobody is the single culprit")
    for index, step in enumerate(steps):
        first = "┌▶ " if index == 0 else "│  "
        page.prose(Text(step.waiter, "bold yellow"), Text(f"  {first}", "yellow"))
        arrow = "└─ waits for " if index == len(steps) - 1 else "│  waits for "
        page.prose(Text.assemble(step.target, (f"   {step.because}", "dim")), Text(f"  {arrow}", "yellow"), "    ")


def _culprits(page: Page, triage: Triage) -> None:
    rows = arrange.culprits(triage)
    if not rows:
        return
    page.heading(agreeing(len(rows), "Culprit", "Culprits"))
    bar = Text.assemble(("┃", "bold red"), " ")
    for row in rows:
        head = Text.assemble((row.who, "bold red"), (f" ({row.role})" if row.role else ""), ("   ", ""), row.process)
        page.prose(head, bar, bar)
        page.prose(row.why, Text.assemble(bar, ("why    ", "dim")), Text.assemble(bar, " " * 7))
        if row.frame:
            page.prose(row.frame, Text.assemble(bar, ("frame  ", "dim")), Text.assemble(bar, " " * 7))


def _next(page: Page, triage: Triage) -> None:
    if not triage.next:
        return
    page.heading("What to try")
    for number, step in enumerate(triage.next, 1):
        page.prose(clean(step), f"  {number}. ")
