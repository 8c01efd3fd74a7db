"""The doctor's report as GitHub-flavoured Markdown, for a CI job's summary or an issue: worst first."""

from __future__ import annotations

from reports.doctor_model import SEVERITIES, Report
from reports.markdown import code, escape

_TITLES = {"error": "Will fail", "warning": "May fail", "info": "Good to know"}


def render(report: Report) -> str:
    """The whole report; every text from outside is escaped, measured values and commands stand in code."""
    lines = [
        f"## harness doctor: {escape(report.reason)} (exit code {report.exit_code})",
        "",
        f"Looked at {escape(', '.join(report.places))} in {report.seconds:.1f} s.",
        "",
    ]
    for severity in SEVERITIES:
        found = [item for item in report.hazards if item.severity == severity]
        if found:
            lines += [f"### {_TITLES[severity]}", ""]
        for item in found:
            lines += [
                f"- <b>{escape(item.what)}</b> ({escape(item.check)}; {escape(', '.join(item.where))})",
                f"  - seen: {code(item.measured)}",
                f"  - why: {escape(item.why)}",
            ]
            lines += [f"  - fix: {code(item.fix)}"] if item.fix else []
        lines += [""] if found else []
    if report.unchecked:
        lines += ["### Not checked, which is not a pass", ""]
        for skipped in report.unchecked:
            ask = f"; to have it checked: {code(skipped.fix)}" if skipped.fix else ""
            lines.append(
                f"- <b>{escape(skipped.check)}</b> ({escape(', '.join(skipped.where))}): {escape(skipped.reason)}{ask}"
            )
        lines.append("")
    if report.passed:
        lines += ["<details><summary>Passed</summary>", "", "| check | where | measured |", "| --- | --- | --- |"]
        lines += [
            f"| {escape(item.check)} | {escape(', '.join(item.where))} | {escape(item.measured)} |"
            for item in report.passed
        ]
        lines += ["", "</details>", ""]
    return "\n".join(lines).rstrip("\n") + "\n"
