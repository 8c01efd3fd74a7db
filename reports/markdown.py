"""The verdict as GitHub-flavoured Markdown, for a CI job's summary: the verdict first, figures folded away."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from reports import arrange, triage_arrange
from reports.model import Check, Finding, Parity, Verdict
from reports.text import clean

_MARKS = {"ruled out": "✓", "confirmed": "✗", "not tested": "○"}
# Behind these characters a mention, a reference, a URL or an address goes on; an entity's own # is none.
_LIVE = re.compile(r"(@|(?<!&)#(?=\d)|[A-Za-z](?=://)|mailto|www(?=\.)|GH(?=-\d))", re.IGNORECASE)


def render(verdict: Verdict) -> str:
    """The whole verdict; every text from outside is escaped, paths and commands stand in code."""
    beyond = [f"- {escape(one)}" for one in arrange.beyond_limits(verdict)]
    lines = ["### Beyond published limits", "", *beyond, ""] if beyond else []
    lines += [
        f"## {escape(triage_arrange.title(verdict))} (exit code {verdict.exit_code})",
        "",
        escape(verdict.reason),
        "",
        escape(arrange.heading(verdict)),
        "",
    ]
    lines += _findings("Not as you asked", arrange.alterations(verdict))
    if verdict.parity:
        lines += _first_divergence(verdict.parity)
    if verdict.triage:
        from reports import triage_markdown  # which needs this module's escaping

        lines += triage_markdown.body(verdict.triage)
    for cause in verdict.causes:
        lines += [f"### Cause: {escape(cause.name)} ({escape(cause.party)})", "", escape(cause.summary), ""]
        lines += [f"Evidence: {escape(cause.evidence)}", ""] if cause.evidence else []
        proofs = [f"- {escape(proof)}" for proof in arrange.proofs(cause)]
        lines += [*proofs, ""] if proofs else []
    lines += _findings("Confounders: what had to be equal and is not", verdict.confounders)
    lines += ["### Missing", "", *[f"- {escape(item)}" for item in verdict.missing], ""] if verdict.missing else []
    if verdict.parity:
        lines += _runs(verdict.parity)
        lines += _checks("The eleven suspicions", arrange.suspicions(verdict.parity))
        lines += _checks("Other checks", arrange.other_checks(verdict.parity))
    lines += _findings("Findings", arrange.notes(verdict))
    lines += _figures(verdict)
    if verdict.reproduce:
        lines += ["### Reproduce", "", *_fence(clean(verdict.reproduce)), ""]
    paths = arrange.paths(verdict)
    lines += table(("", "path"), [(escape(name), code(path)) for name, path in paths]) if paths else []
    return "\n".join(lines).rstrip("\n") + "\n"


def escape(text: object) -> str:
    """Text that Markdown and HTML leave as it is, on one line, also in a table cell."""
    shown = re.sub(r"([\\`*\[\]{}~#!|$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9]))", r"\\\1", clean(text))
    shown = _inert(shown.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;"))
    return re.sub(r"^(\d*)([-+=.)])(?=[ =-]|$)", r"\1\\\2", shown.strip())  # else `1. x` opens a list


def code(text: object) -> str:
    """Text as inline code that neither a backtick nor a pipe can leave."""
    shown = clean(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    for char in "|`*_[]\\$~":
        shown = shown.replace(char, f"&#{ord(char)};")
    return f"<code>{_inert(shown)}</code>"


def _inert(shown: str) -> str:
    """Escaped text in which nothing is made a link: no @mention, no #123 or GH-123, no URL, no address of mail.

    An empty comment breaks them in two: an entity would not, because GitHub looks for them in the rendered text.
    """
    return _LIVE.sub(r"\1<!-- -->", shown)


def _fence(text: str) -> list[str]:
    ticks = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return [f"{ticks}sh", text, ticks]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A table whose cells are escaped already."""
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)] + [""]


def _findings(title: str, findings: list[Finding]) -> list[str]:
    lines = []
    for finding in findings:
        where = f" ({escape(finding.where)})" if finding.where else ""
        effect = f" Effect: {escape(finding.effect)}" if finding.effect else ""
        lines.append(f"- <b>{escape(finding.name)}</b>{where}: {escape(finding.summary).rstrip('.')}.{effect}")
    return [f"### {title}", "", *lines, ""] if lines else []


def _first_divergence(parity: Parity) -> list[str]:
    facts = arrange.place_facts(parity)
    rows = [(escape(fact.name), code(fact.value)) for fact in facts]
    return ["### First divergence", "", *table(("", "value"), rows)] if rows else []


def _runs(parity: Parity) -> list[str]:
    rows = arrange.side_by_side(parity.runs)
    head = ["", "", *[escape(run.side) for run in parity.runs]]
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
            _MARKS.get(check.state, "○"),
            str(check.number or ""),
            escape(check.name),
            escape(check.state),
            escape(check.evidence),
        )
        for check in checks
    ]
    head = ("", "", "check", "state", "evidence")
    return [f"### {title}: {escape(arrange.tally(checks))}", "", *table(head, rows)] if rows else []


def _figures(verdict: Verdict) -> list[str]:
    floor = arrange.floor_facts(verdict.parity.floor) if verdict.parity else []
    metrics = arrange.metrics(verdict.parity) if verdict.parity else []
    lines = []
    for title, facts in (
        ("Floor and tolerance", floor),
        ("Coverage", arrange.facts(verdict.coverage)),
        ("Figures", arrange.facts(verdict.figures)),
    ):
        rows = [
            (escape(f"{fact.group} / {fact.name}" if fact.group else fact.name), escape(fact.value)) for fact in facts
        ]
        lines += [f"#### {title}", "", *table(("", "value"), rows)] if rows else []
    if metrics:
        rows4 = [
            (escape(m.group), escape(m.name), escape(m.value), escape(m.limit), "outside" if m.outside else "")
            for m in metrics
        ]
        lines += ["#### Metrics", "", *table(("", "metric", "value", "published limit", ""), rows4)]
    if not lines:
        return []
    return ["<details><summary>Floor, coverage, metrics</summary>", "", *lines, "</details>", ""]
