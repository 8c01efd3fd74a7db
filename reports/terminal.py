"""A verdict on a terminal or in a pipe: the answer first and last, between them what it rests on.

`verbose` adds the tables: both runs side by side, metrics, floor, coverage, every check and finding. Within them the
least important comes first, because a terminal shows the end. Every colour has a mark or a word beside it.
"""

from __future__ import annotations

import io

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from probes import redaction
from reports import arrange, triage_arrange, triage_terminal
from reports.layout import Page, label_width, wrap
from reports.model import Check, Finding, Parity, Verdict
from reports.pipe import outlive_reader
from reports.text import clean

STYLES = {
    "EQUIVALENT": "green",
    "DIVERGENT": "red",
    "ERROR": "red",
    "INCONCLUSIVE": "yellow",
    "CONFOUNDED": "yellow",
    "HUNG": "red",
    "SLOW": "yellow",
    "HEALTHY": "green",
    "INSUFFICIENT": "yellow",
}
STATES = {"ruled out": ("✓", "green"), "confirmed": ("✗", "bold red"), "not tested": ("○", "yellow")}


def print_verdict(verdict: Verdict, console: Console, *, verbose: bool = False) -> None:
    """Print a verdict; the last line repeats it with its exit code. A reader that closed the pipe is no error."""
    with outlive_reader(console):
        _print(Page(console), redaction.scrub(verdict), verbose)


def _print(page: Page, verdict: Verdict, verbose: bool) -> None:
    page.heading(arrange.heading(verdict))
    _beyond_limits(page, arrange.beyond_limits(verdict))  # never below the word EQUIVALENT alone
    _answer(page, verdict)
    _causes(page, verdict)
    if verdict.parity:
        _first_divergence(page, verdict.parity)
    if verbose:
        _tables(page, verdict)
    elif verdict.parity:
        _summary(page, verdict.parity)
    if verdict.triage:
        triage_terminal.print_body(page, verdict.triage)
    _findings(page, "Confounders: what had to be equal and is not", verdict.confounders, "bold yellow")
    if verdict.missing:
        page.heading("Not tested, or missing")
        for item in verdict.missing:
            page.prose(clean(item), "  ", "    ")
    _paths(page, verdict)
    _beyond_limits(page, arrange.beyond_limits(verdict))
    _findings(page, "Not as you asked", arrange.alterations(verdict), "bold yellow")
    _verdict_line(page, verdict)


def _answer(page: Page, verdict: Verdict) -> None:
    page.prose(Text.assemble((triage_arrange.title(verdict), f"bold {_style(verdict)}"), "  ", clean(verdict.reason)))


def _summary(page: Page, parity: Parity) -> None:
    """What the tables hold, in a few lines: the checks that confirm a difference, and a count of the rest."""
    checks = [*arrange.suspicions(parity), *arrange.other_checks(parity)]
    page.heading("Checks", f"{arrange.tally(checks)}; --verbose prints all of them, and both runs side by side")
    mark, style = STATES["confirmed"]
    for check in checks:
        if check.state == "confirmed":
            text = Text.assemble((f"{mark} ", style), (clean(check.name), "bold"), "  ", clean(check.evidence))
            page.prose(text, "  ", "    ")


def _tables(page: Page, verdict: Verdict) -> None:
    if verdict.parity:
        _runs(page, verdict.parity)
        _metrics(page, verdict.parity)
        _facts(page, "Floor and tolerance", arrange.floor_facts(verdict.parity.floor))
    _facts(page, "Coverage", arrange.facts(verdict.coverage))
    _facts(page, "Figures", arrange.facts(verdict.figures))
    if verdict.parity:
        _checks(page, "The eleven suspicions", arrange.suspicions(verdict.parity))
        _checks(page, "Other checks", arrange.other_checks(verdict.parity))
    _findings(page, "Findings", arrange.notes(verdict), "bold")


def _style(verdict: Verdict) -> str:
    return STYLES.get(verdict.verdict, "green" if verdict.exit_code == 0 else "red")


def _title_width(page: Page) -> int:
    """Cells of a table's title column: the longest word of a suspicion's name, or its longest name but one."""
    return 26 if page.columns < 110 else 30


def render(verdict: Verdict, width: int = 100) -> str:
    """All of it without colour, as a pipe gets it."""
    file = io.StringIO()
    console = Console(file=file, width=width, color_system=None, force_terminal=False, legacy_windows=False)
    print_verdict(verdict, console, verbose=True)
    return file.getvalue()


def _runs(page: Page, parity: Parity) -> None:
    rows, runs = arrange.side_by_side(parity.runs), parity.runs
    if not runs:
        return
    changed, title = sum(row.changed for row in rows), _title_width(page)
    value = max(10, (page.columns - 1 - title - 1 - len(runs)) // len(runs))
    sides = [clean(run.side) or "run" for run in runs]
    widths, names = [1, title, *[value] * len(runs)], ["", "", *sides]
    remark = Text(f"≠ {changed} changed" if changed else "nothing changed" if len(runs) > 1 else "", "dim")
    page.row(["", remark, *[Text(side, "bold") for side in sides]], widths, names)
    for row in rows:
        style = "bold yellow" if row.changed else "dim" if row.state == "measured" else ""
        values = [*row.values[:-1], f"{row.values[-1]}  {row.ratio}"] if row.ratio else row.values
        cells = [Text(text, style) for text in ("≠" if row.changed else "", row.title, *values)]
        page.row(cells, widths, names)


def _metrics(page: Page, parity: Parity) -> None:
    metrics, group = arrange.metrics(parity), ""
    if not metrics:
        return
    outside = any(metric.outside for metric in metrics)
    page.heading("Metrics", "beside the limits that others publish" + ("; ! is outside" if outside else ""))
    for metric in (metric for metric in metrics if not metric.deep):
        if metric.group != group:
            group = metric.group
            page.prose(Text(group, "bold"), "  ", "  ")
        style = "bold yellow" if metric.outside else ""
        cells = [
            Text("!" if metric.outside else "", style),
            Text(metric.name),
            Text(metric.value, style),
            Text(metric.limit, style or "dim"),
        ]
        value = 12 if metric.limit else page.columns - 1 - 32 - 3
        page.row(cells, [1, 32, value, page.columns - 1 - 32 - value - 3], ["", "", "value", "limit"])
    deep = sum(metric.deep for metric in metrics)
    if deep:
        page.prose(Text(f"{deep} more, by bucket, in the report and in verdict.json", "dim"), "  ", "  ")


def _facts(page: Page, title: str, facts: list[arrange.Fact]) -> None:
    """Group by group: short facts flow behind each other, long ones follow on lines of their own."""
    if not facts:
        return
    page.heading(title)
    for group in dict.fromkeys(fact.group for fact in facts):
        members = [fact for fact in facts if fact.group == group]
        items = [Text.assemble((fact.name, "dim"), " ", fact.value) for fact in members]
        short = [item for item in items if item.cell_len <= page.columns // 2]
        indent = Text(f"  {group}  " if group else "  ", "bold")
        for line in _flow(short, page.columns - indent.cell_len):
            page.line(Text.assemble(indent, line))
            indent = Text(" " * indent.cell_len)
        for item in items:
            if item.cell_len > page.columns // 2:
                page.prose(item, indent, " " * (indent.cell_len + 2))
                indent = Text(" " * indent.cell_len)


def _flow(items: list[Text], width: int) -> list[Text]:
    """Items behind each other, on as few lines of `width` cells as they take."""
    lines: list[Text] = []
    for item in items:
        if lines and lines[-1].cell_len + 3 + item.cell_len <= width:
            lines[-1] = Text.assemble(lines[-1], (" · ", "dim"), item)
        else:
            lines.append(item)
    return lines


def _checks(page: Page, heading: str, checks: list[Check]) -> None:
    if not checks:
        return
    page.heading(heading, arrange.tally(checks))
    name = _title_width(page)
    widths = [1, 2, name, 10, page.columns - 1 - 2 - name - 10 - 4]
    for check in checks:
        mark, style = STATES.get(check.state, ("○", "yellow"))
        page.row(
            [
                Text(mark, style),
                f"{check.number:>2}" if check.number else "",
                clean(check.name),
                Text(clean(check.state), style),
                clean(check.evidence),
            ],
            widths,
            ["", "", "", "", "evidence"],
        )


def _findings(page: Page, title: str, findings: list[Finding], style: str) -> None:
    if not findings:
        return
    page.heading(title)
    for finding in findings:
        where = f" ({clean(finding.where)})" if finding.where else ""
        effect = Text.assemble(("  effect: ", "dim"), clean(finding.effect)) if finding.effect else ""
        text = Text.assemble((clean(finding.name), style), where, "  ", clean(finding.summary), effect)
        page.prose(text, "  ", "    ")


def _beyond_limits(page: Page, sentences: list[str]) -> None:
    if not sentences:
        return
    page.heading("Beyond published limits")
    for sentence in sentences:
        page.prose(Text(sentence, "bold yellow"), "  ", "    ")


def _first_divergence(page: Page, parity: Parity) -> None:
    """The first divergence as a card with a bar at its left, so that long values stay whole."""
    facts = arrange.place_facts(parity)
    if not facts:
        return
    bar = Text.assemble(("┃", "bold red"), " ")
    page.line()
    page.prose(Text("First divergence", "bold red"), bar)
    page.prose(" · ".join(f"{fact.name} {fact.value}" for fact in facts[:5]), bar, bar)
    pad = max(len(fact.name) for fact in facts)
    for fact in facts[5:]:
        for index, line in enumerate(wrap(fact.value, page.columns - pad - 4)):
            page.line(Text.assemble(bar, (("" if index else fact.name).ljust(pad), "dim"), "  ", line))


def _causes(page: Page, verdict: Verdict) -> None:
    if not verdict.causes:
        return
    page.heading("Causes")
    for cause in verdict.causes:
        page.prose(Text.assemble((clean(cause.name), "bold red"), (f"   {clean(cause.party)}", "bold")), "  ", "    ")
        page.prose(clean(cause.summary), "    ")
        if cause.evidence:
            page.prose(clean(cause.evidence), Text("    evidence  ", "dim"))
        for proof in arrange.proofs(cause):
            page.prose(proof, "    ", "      ")


def _paths(page: Page, verdict: Verdict) -> None:
    """Paths and the command, each whole on a line of its own."""
    lines = [(name, Text(path)) for name, path in arrange.paths(verdict)]
    if verdict.reproduce:
        lines.append(("reproduce", Text(clean(verdict.reproduce), "bold")))
    if lines:
        page.line()
    pad = label_width(name for name, _ in lines)
    for name, text in lines:
        page.line(Text.assemble((name, "dim"), " " * (max(0, pad - cell_len(name)) + 2), text))


def _verdict_line(page: Page, verdict: Verdict) -> None:
    """On a terminal the reason, then the verdict; in a pipe both on the last line, for `tail -1`."""
    style = _style(verdict)
    name, code = triage_arrange.title(verdict), verdict.exit_code
    page.line()
    page.rule("━", style)
    if page.console.is_terminal:
        page.prose(Text(clean(verdict.reason), "bold"))
        page.line(Text.assemble((f" {name} ", f"bold reverse {style}"), (f"  exit code {code}", f"bold {style}")))
    else:
        page.line(f"{name} (exit code {code}): {clean(verdict.reason)}")
