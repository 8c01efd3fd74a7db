"""The details of a parity verdict on a terminal: causes, first divergence, checks, what is missing, paths; tables."""

from __future__ import annotations

from rich.cells import cell_len
from rich.text import Text

from reports.layout import Page, label_width
from reports.model import Check, Finding, Parity, Verdict
from reports.sections import parity as arrange
from reports.sections.terminal import triage
from reports.text import clean

STATES = {
    "ruled out": ("✓", "green"),
    "confirmed": ("✗", "bold red"),
    "not tested": ("○", "yellow"),
    "undecided": ("?", "yellow"),
}


def details(page: Page, verdict: Verdict, verbose: bool) -> None:
    """Print what the answer rests on. `verbose` adds the tables: both runs, metrics, floor, coverage, checks,
    findings.
    """
    _causes(page, verdict)
    if verdict.parity:
        _first_divergence(page, verdict.parity)
    if verbose:
        _tables(page, verdict)
    elif verdict.parity:
        _summary(page, verdict.parity)
    if verdict.triage:
        triage.print_body(page, verdict.triage, verbose=verbose)
    findings(page, ": ".join(arrange.CONFOUNDERS), verdict.confounders, "bold yellow")
    if verdict.missing:
        page.heading("Not tested, or missing")
        for item in verdict.missing:
            page.prose(clean(item), "  ", "    ")
    _paths(page, verdict)


def _summary(page: Page, parity: Parity) -> None:
    """Print the eleven suspicions by name, then the number of other checks in each state."""
    suspicions, other_checks = arrange.suspicions(parity), arrange.other_checks(parity)
    beside = ", and both runs side by side" if len(parity.runs) > 1 else ""
    if suspicions:
        page.heading(arrange.ELEVEN, f"{arrange.tally(suspicions)}; --verbose prints the evidence of all{beside}")
        _names(page, [check for check in suspicions if check.state != "confirmed"])
        _confirmed(page, suspicions)
    open_ = [check for check in other_checks if check.state != "ruled out"]
    if open_:
        page.heading(arrange.OTHERS, arrange.tally(other_checks))
        _names(page, [check for check in open_ if check.state != "confirmed"])
        _confirmed(page, open_)
    elif other_checks:
        page.line()
        page.prose(Text.assemble((arrange.OTHERS, "bold"), (f"   {arrange.tally(other_checks)}", "dim")))


def _names(page: Page, checks: list[Check]) -> None:
    """Print lines such as `✓ 1 token-ids-not-text · ○ 8 cache-hit-rate`."""
    marked = [Text.assemble(STATES[check.state], f" {_numbered(check)}") for check in checks]
    for line in _flow(marked, page.columns - 2):
        page.line(Text.assemble("  ", line))


def _numbered(check: Check) -> str:
    return f"{check.number} {clean(check.name)}" if check.number else clean(check.name)


def _confirmed(page: Page, checks: list[Check]) -> None:
    mark, style = STATES["confirmed"]
    for check in checks:
        if check.state == "confirmed":
            text = Text.assemble((f"{mark} ", style), (_numbered(check), "bold"), "  ", clean(check.evidence))
            page.prose(text, "  ", "    ")


def _tables(page: Page, verdict: Verdict) -> None:
    if verdict.parity:
        _runs(page, verdict.parity)
        _metrics(page, verdict.parity)
    for title, facts in arrange.fact_sections(verdict):
        _facts(page, title, facts)
    if verdict.parity:
        for title, checks in arrange.check_tables(verdict.parity):
            _checks(page, title, checks)
    findings(page, "Findings", arrange.notes(verdict), "bold")


NARROW = 60  # columns; with fewer, every cell of a table gets a line of its own


def _title_width(page: Page) -> int:
    """Return the width of a table's title column: the longest word of a suspicion's name, or its second longest
    name.
    """
    return 26 if page.columns < 110 else 30


def _runs(page: Page, parity: Parity) -> None:
    rows, runs = arrange.side_by_side(parity.runs), parity.runs
    if not runs:
        return
    changed, title = sum(row.changed for row in rows), _title_width(page)
    value = max(10, (page.columns - 1 - title - 1 - len(runs)) // len(runs))
    sides = [clean(run.side) or "run" for run in runs]
    widths, names = [1, title, *[value] * len(runs)], ["", "", *sides]
    remark = ""
    if changed:
        remark = f"≠ {changed} changed"
    elif len(runs) > 1:
        remark = "nothing changed"
    page.row(["", Text(remark, "dim"), *[Text(side, "bold") for side in sides]], widths, names)
    styles = {"changed": "bold yellow", "measured": "dim"}
    for row in rows:
        *earlier_values, last = row.values
        if row.ratio:
            last = f"{last}  {row.ratio}"
        cells = ["≠" if row.changed else "", row.title, *earlier_values, last]
        page.row([Text(text, styles.get(row.state, "")) for text in cells], widths, names)


def _metrics(page: Page, parity: Parity) -> None:
    metrics = arrange.metrics(parity)
    if not metrics:
        return
    note = "beside the limits that others publish"
    if any(metric.outside for metric in metrics):
        note += "; ! is outside"
    page.heading("Metrics", note)
    group = ""
    for metric in metrics:
        if metric.deep:
            continue
        if metric.group != group:
            group = metric.group
            page.prose(Text(group, "bold"), "  ", "  ")
        _metric(page, metric)
    deep = sum(metric.deep for metric in metrics)
    if deep:
        page.prose(Text(f"{deep} more, by bucket, in the report and in verdict.json", "dim"), "  ", "  ")


def _metric(page: Page, metric: arrange.Metric) -> None:
    style = "bold yellow" if metric.outside else ""
    cells = [
        Text("!" if metric.outside else "", style),
        Text(metric.name),
        Text(metric.value, style),
        Text(metric.limit, style or "dim"),
    ]
    value = 12 if metric.limit or page.columns < NARROW else page.columns - 1 - 32 - 3
    limit = max(0, page.columns - 1 - 32 - value - 3)
    page.row(cells, [1, 32, value, limit], ["", "", "value", "limit"])


def _facts(page: Page, title: str, facts: list[arrange.Fact]) -> None:
    """Print facts by group: short ones flow one after the other, long ones get lines of their own."""
    page.heading(title)
    for group in dict.fromkeys(fact.group for fact in facts):
        items = [Text.assemble((fact.name, "dim"), " ", fact.value) for fact in facts if fact.group == group]
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
    """Return items joined on as few lines of `width` cells as they need."""
    lines: list[Text] = []
    for item in items:
        if lines and lines[-1].cell_len + 3 + item.cell_len <= width:
            lines[-1] = Text.assemble(lines[-1], (" · ", "dim"), item)
        else:
            lines.append(item)
    return lines


def _checks(page: Page, heading: str, checks: list[Check]) -> None:
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
            ["", "", "", "state" if page.columns < NARROW else "", "evidence"],
        )


def findings(page: Page, title: str, items: list[Finding], style: str) -> None:
    """Print findings under a title; nothing without a finding."""
    if not items:
        return
    page.heading(title)
    for finding in items:
        where = f" ({clean(finding.where)})" if finding.where else ""
        effect = Text.assemble(("  effect: ", "dim"), clean(finding.effect)) if finding.effect else ""
        text = Text.assemble((clean(finding.name), style), where, "  ", clean(finding.summary), effect)
        page.prose(text, "  ", "    ")


def _first_divergence(page: Page, parity: Parity) -> None:
    """Print the first divergence as a card with a bar on its left, so that long values stay whole."""
    facts = arrange.place_facts(parity)
    if not facts:
        return
    bar = Text.assemble(("┃", "bold red"), " ")
    page.line()
    page.prose(Text("First divergence", "bold red"), bar)
    page.prose(" · ".join(f"{fact.name} {fact.value}" for fact in facts[:5]), bar, bar)
    pad = max(len(fact.name) for fact in facts)
    for fact in facts[5:]:
        label = Text.assemble(bar, (fact.name.ljust(pad), "dim"), "  ")
        page.prose(fact.value, label, Text.assemble(bar, " " * (pad + 2)))


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
    """Print paths and the command, each whole on a line of its own."""
    lines = [(name, Text(path), False) for name, path in arrange.paths(verdict)]
    if verdict.reproduce:
        lines.append(("reproduce", Text(clean(verdict.reproduce), "bold"), True))
    if lines:
        page.line()
    pad = label_width(name for name, *_ in lines)
    for name, text, command in lines:
        label = Text.assemble((name, "dim"), " " * (max(0, pad - cell_len(name)) + 2))
        page.command(text, label) if command else page.path(text, label)
