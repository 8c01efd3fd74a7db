"""GitHub-flavoured Markdown, for a CI job's summary or an issue: the answer first, figures folded away."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from reports.renderers import Renderer
from reports.sections import answer, bisect, doctor, nightly, parity, recorded, triage
from reports.sections.parity import MARKS
from reports.text import clean

if TYPE_CHECKING:
    from reports.bisect_model import Bisection
    from reports.doctor_model import Report
    from reports.model import Cause, Check, Finding, Parity, Triage, Verdict
    from reports.nightly_model import Night
    from reports.renderers import Subject
    from reports.run_model import RecordedRun

# After these characters GitHub would make a mention, a reference, a link or an address. The # of an entity is
# excluded.
LIVE = re.compile(r"(@|(?<!&)#(?=\d)|[A-Za-z](?=://)|mailto|www(?=\.)|GH(?=-\d))", re.IGNORECASE)


class MarkdownRenderer(Renderer):
    name = "md"
    suffix = ".md"
    takes = frozenset({"parity", "audit", "triage", "doctor", "run", "nightly", "bisect"})

    def render(self, subject: Subject) -> str:
        """Return the text. Every text from outside is escaped; paths, measured values and commands are in code."""
        draw: dict[str, Callable[[Any], list[str]]] = {
            "doctor": _report,
            "run": _recorded,
            "nightly": _night,
            "bisect": _bisection,
        }
        return "\n".join(draw.get(subject.kind, _verdict)(subject)).rstrip("\n") + "\n"


def _verdict(verdict: Verdict) -> list[str]:
    lines = _sentences("Beyond published limits", parity.beyond_limits(verdict))
    summary = answer.of(verdict)
    lines += [
        f"## {answer.coded(escape(summary.title), verdict.exit_code)}",
        "",
        escape(summary.reason),
        "",
        *(f"- {escape(sentence)}" for sentence in summary.evidence),
        *(f"- {label}: {escape(text)}" for label, text in summary.parts),
        "",
    ]
    lines += [escape(parity.heading(verdict)), ""] if parity.backends(verdict) else []
    for heading, items in parity.warnings(verdict):
        lines += findings(heading, items)
    if verdict.parity:
        lines += first_divergence(verdict.parity)
    if verdict.triage:
        lines += hang(verdict.triage)
    for cause in verdict.causes:
        lines += _cause(cause)
    lines += findings(": ".join(parity.CONFOUNDERS), verdict.confounders)
    lines += _sentences("Missing", verdict.missing)
    if verdict.parity:
        lines += _runs(verdict.parity)
        for title, checks in parity.check_tables(verdict.parity):
            lines += _checks(title, checks)
    lines += findings("Findings", parity.notes(verdict))
    lines += _figures(verdict)
    if verdict.reproduce:
        lines += ["### Reproduce", "", *fence(clean(verdict.reproduce)), ""]
    paths = parity.paths(verdict)
    return lines + (table(("", "path"), [(escape(name), code(path)) for name, path in paths]) if paths else [])


def _sentences(title: str, sentences: list[str]) -> list[str]:
    """Return a list of sentences under their title; nothing without a sentence."""
    return _list(title, [f"- {escape(sentence)}" for sentence in sentences])


def _cause(cause: Cause) -> list[str]:
    lines = [f"### Cause: {escape(cause.name)} ({escape(cause.party)})", "", escape(cause.summary), ""]
    lines += [f"Evidence: {escape(cause.evidence)}", ""] if cause.evidence else []
    proofs = [f"- {escape(proof)}" for proof in parity.proofs(cause)]
    return [*lines, *proofs, ""] if proofs else lines


def escape(text: object) -> str:
    """Return text that Markdown and HTML leave unchanged, on one line, even in a table cell."""
    escaped = re.sub(r"([\\`*\[\]{}~!|$]|#(?!\d)|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9]))", r"\\\1", clean(text))
    escaped = _inert(escaped.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;"))
    return re.sub(r"^(\d*)([-+=.)])(?=[ =-]|$)", r"\1\\\2", escaped.strip())  # otherwise `1. x` would begin a list


def code(text: object) -> str:
    """Return text as inline code from which neither a backtick nor a pipe can break out."""
    escaped = clean(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    for char in "|`*_[]\\$~":
        escaped = escaped.replace(char, f"&#{ord(char)};")
    return f"<code>{_inert(escaped)}</code>"


def _inert(escaped: str) -> str:
    """Return escaped text without anything that GitHub turns into a link: @mention, #123, GH-123, URL, mail address.

    An empty comment breaks each of them in two. An entity would not, because GitHub searches the rendered text.
    """
    return LIVE.sub(r"\1<!-- -->", escaped)


def fence(text: str) -> list[str]:
    """Return commands as a block from which no backtick can break out."""
    ticks = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return [f"{ticks}sh", text, ticks]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return a table whose cells are already escaped."""
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)] + [""]


def findings(title: str, items: list[Finding]) -> list[str]:
    """Return a list of findings under their title; nothing without a finding."""
    lines = []
    for finding in items:
        where = f" ({escape(finding.where)})" if finding.where else ""
        effect = f" Effect: {escape(finding.effect)}" if finding.effect else ""
        lines.append(f"- <b>{escape(finding.name)}</b>{where}: {escape(finding.summary).rstrip('.')}.{effect}")
    return _list(title, lines)


def first_divergence(body: Parity) -> list[str]:
    """Return everything about the first divergence; nothing without one."""
    facts = parity.place_facts(body)
    rows = [(escape(fact.name), code(fact.value)) for fact in facts]
    return ["### First divergence", "", *table(("", "value"), rows)] if rows else []


def _runs(body: Parity) -> list[str]:
    rows = parity.side_by_side(body.runs)
    head = ["", "", *[escape(run.side) for run in body.runs]]
    cells = [
        [
            "≠" if row.changed else "",
            escape(row.title),
            *map(escape, row.values[:-1]),
            f"{escape(row.values[-1])} {row.ratio}".rstrip(),
        ]
        for row in rows
    ]
    return ["### The runs side by side", "", *table(head, cells)] if rows else []


def _checks(title: str, checks: list[Check]) -> list[str]:
    rows = [
        (
            MARKS.get(check.state, "○"),
            str(check.number or ""),
            escape(check.name),
            escape(check.state),
            escape(check.evidence),
        )
        for check in checks
    ]
    head = ("", "", "check", "state", "evidence")
    return [f"### {title}: {escape(parity.tally(checks))}", "", *table(head, rows)]


def _figures(verdict: Verdict) -> list[str]:
    metrics = parity.metrics(verdict.parity) if verdict.parity else []
    lines = []
    for title, facts in parity.fact_sections(verdict):
        rows = [(escape(" / ".join(filter(None, (fact.group, fact.name)))), escape(fact.value)) for fact in facts]
        lines += [f"#### {title}", "", *table(("", "value"), rows)]
    if metrics:
        rows4 = [
            (escape(m.group), escape(m.name), escape(m.value), escape(m.limit), "outside" if m.outside else "")
            for m in metrics
        ]
        lines += ["#### Metrics", "", *table(("", "metric", "value", "published limit", ""), rows4)]
    return _folded("Floor, coverage, metrics", lines) if lines else []


def hang(body: Triage) -> list[str]:
    """Return culprits, cycle, victims and what to try; the processes are folded away."""
    lines: list[str] = []
    culprits = []
    for row in triage.culprits(body):
        frame = code(row.frame) if row.frame else ""
        culprits.append((escape(row.who), escape(row.role), code(row.process), escape(row.why), frame))
    if culprits:
        lines += ["### Culprits", "", *table(("", "role", "process", "why", "frame"), culprits)]
    steps = [f"<b>{escape(step.waiter)}</b> waits for <b>{escape(step.target)}</b>: {escape(step.because)}"
             for step in triage.cycle(body)]  # fmt: skip
    lines += _list("Cycle: everybody waits for the next one", _counted(steps))
    lines += _list("Waiting: victims, not causes",
                   [f"- {escape(group.line)} ({escape(group.who)})" for group in triage.victims(body)])  # fmt: skip
    lines += _list("What to try", _counted(map(escape, body.next)))
    processes = [(escape(party), escape(label), code(key), escape(state))
                 for party, label, key, state in triage.processes(body)]  # fmt: skip
    if processes:
        more = triage.left_out(body)
        in_json = [f"{more} more are in the JSON.", ""] if more else []
        rows = table(("", "process", "host:pid", "state"), processes)
        lines += _folded(f"Processes ({len(body.nodes)})", [*rows, *in_json])
    stacks: list[str] = []
    for stack in triage.stacks(body):
        stacks += [f"<b>{escape(stack.who)}</b>", "", *(f"- {code(frame)}" for frame in stack.frames), ""]
    if stacks:
        lines += _folded("Stacks, innermost frame first", stacks)
    return lines


def _list(title: str, items: list[str]) -> list[str]:
    return [f"### {title}", "", *items, ""] if items else []


def _counted(items: Iterable[str]) -> list[str]:
    return [f"{number}. {item}" for number, item in enumerate(items, 1)]


def _folded(summary: str, lines: Sequence[str]) -> list[str]:
    """Return lines that a reader opens."""
    return [f"<details><summary>{summary}</summary>", "", *lines, "</details>", ""]


def _report(report: Report) -> list[str]:
    lines = [
        f"## harness doctor: {escape(report.reason)} (exit code {report.exit_code})",
        "",
        f"Looked at {escape(', '.join(report.places))} in {report.seconds:.1f} s.",
        "",
    ]
    for title, hazards in doctor.by_severity(report):
        lines += [f"### {title}", ""]
        for hazard in hazards:
            lines += [
                f"- <b>{escape(hazard.what)}</b> ({escape(hazard.check)}; {escape(', '.join(hazard.where))})",
                f"  - seen: {code(hazard.measured)}",
                f"  - why: {escape(hazard.why)}",
            ]
            lines += [f"  - fix: {code(hazard.fix)}"] if hazard.fix else []
        lines.append("")
    if report.unchecked:
        lines += ["### Not checked, which is not a pass", ""]
        for check in report.unchecked:
            ask = f"; to have it checked: {code(check.fix)}" if check.fix else ""
            where = escape(", ".join(check.where))
            lines.append(f"- <b>{escape(check.check)}</b> ({where}): {escape(check.reason)}{ask}")
        lines.append("")
    if report.passed:
        rows = [(escape(item.check), escape(", ".join(item.where)), escape(item.measured)) for item in report.passed]
        lines += _folded("Passed", table(("check", "where", "measured"), rows))
    return lines


def _night(night: Night) -> list[str]:
    """Return what changed, then the cells that did not run."""
    title = f"{escape(night.matrix)}, night {night.number}: {escape(night.reason)}"
    lines = [f"## {title} (exit code {night.exit_code})", ""]
    for result in nightly.noteworthy(night):
        lines += [f"### {escape(result.status)}: {escape(result.cell)}", ""]
        lines += [f"{escape(result.verdict)}: {escape(result.reason)}", ""]
        lines += [*(f"- {escape(line)}" for line in nightly.lines(result)), ""]
    rows = [(escape(name), escape(why)) for name, why in night.left_out]
    return lines + (["### Not run", "", *table(("cell", "why"), rows)] if rows else [])


def _bisection(bisection: Bisection) -> list[str]:
    """Return the answer, what was found, then every comparison."""
    lines = [f"## {escape(bisection.status)}: {escape(bisection.reason)} (exit code {bisection.exit_code})", ""]
    lines += [f"Bad: {escape(bisection.question)}.", ""]
    for title, names in bisect.results(bisection):
        lines += [f"### {title[0].upper()}{title[1:]}", "", *(f"- {code(name)}" for name in names), ""]
    lines += [*(f"Note: {escape(note)}" for note in bisection.notes), ""]
    rows = [(str(number), call, code(subject), escape(why), took)
            for number, call, subject, why, took in bisect.rows(bisection)]  # fmt: skip
    lines += ["### Comparisons", "", *table(("", "", "tried", "why", "time"), rows)]
    return [*lines, f"Recordings: {code(bisection.folder)}", "", *fence(clean(bisection.reproduce))]


def _recorded(run: RecordedRun) -> list[str]:
    """Return a few of the metrics of each step."""
    names, rows = recorded.table(run)
    lines = [f"{_command(run.command)} recorded in {_command(run.run)}", ""]
    lines += [] if run.complete else [escape(recorded.state(run)), ""]
    return lines + (table([*map(escape, names)], [[*map(escape, row)] for row in rows]) if rows else [])


def _command(text: str) -> str:
    return f"`{text}`" if re.fullmatch(r"[\w ./=,:+-]*", text, re.ASCII) else code(text)
