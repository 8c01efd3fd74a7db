"""The verdict as JUnit XML: one test case for the verdict itself, one for every check.

The verdict is a case of its own, so that a run that tested nothing (INCONCLUSIVE: every check skipped) is never green.
"""

from __future__ import annotations

from xml.etree import ElementTree

from reports import arrange, triage_arrange
from reports.model import Check, Triage, Verdict
from reports.text import clean


def render(verdict: Verdict) -> str:
    """A confirmed check fails, one not tested is skipped; the verdict's case fails on exit code 1, errs on others."""
    checks = [*arrange.suspicions(verdict.parity), *arrange.other_checks(verdict.parity)] if verdict.parity else []
    name = f"harness.{clean(verdict.kind)}"
    suite = ElementTree.Element("testsuite", name=clean(arrange.heading(verdict)))
    _verdict_case(suite, name, verdict)
    for check in checks:
        _check_case(suite, f"{name}.checks", check)
    counts = {
        "tests": len(checks) + 1,
        "failures": len(suite.findall("*/failure")),
        "errors": len(suite.findall("*/error")),
        "skipped": len(suite.findall("*/skipped")),
    }
    for key, count in counts.items():
        suite.set(key, str(count))
    root = ElementTree.Element("testsuites", {key: str(count) for key, count in counts.items()})
    root.append(suite)
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _verdict_case(suite: ElementTree.Element, classname: str, verdict: Verdict) -> None:
    case = ElementTree.SubElement(suite, "testcase", classname=classname, name="verdict")
    if verdict.exit_code:
        kind = "failure" if verdict.exit_code == 1 else "error"
        message = f"{triage_arrange.title(verdict)} (exit code {verdict.exit_code}): {clean(verdict.reason)}"
        problem = ElementTree.SubElement(case, kind, type=clean(verdict.verdict), message=message)
        lines = []
        for cause in verdict.causes:
            lines.append(f"{clean(cause.name)} ({clean(cause.party)}): {clean(cause.summary)}. {clean(cause.evidence)}")
            lines += [f"  {proof}" for proof in arrange.proofs(cause)]
        lines += [f"{clean(item.name)}: {clean(item.summary)}" for item in verdict.confounders]
        lines += [f"missing: {clean(item)}" for item in verdict.missing]
        if verdict.parity:
            lines += [f"{fact.name}: {fact.value}" for fact in arrange.place_facts(verdict.parity)]
        if verdict.triage:
            lines += _triage_lines(verdict.triage)
        problem.text = "\n".join([*lines, f"reproduce: {clean(verdict.reproduce)}"])
    kind = f"{triage_arrange.title(verdict)}: " if verdict.triage else ""
    ElementTree.SubElement(case, "system-out").text = "\n".join(
        [
            *(f"beyond published limits: {clean(one)}" for one in arrange.beyond_limits(verdict)),
            kind + clean(verdict.reason),
            *(f"{clean(item.name)}: {clean(item.summary)}" for item in verdict.findings),
        ]
    )


def _triage_lines(triage: Triage) -> list[str]:
    lines = [
        f"culprit: {row.who} {row.process}: {row.why}" + (f" ({row.frame})" if row.frame else "")
        for row in triage_arrange.culprits(triage)
    ]
    lines += [f"cycle: {step.waiter} waits for {step.target}: {step.because}" for step in triage_arrange.cycle(triage)]
    lines += [f"victims: {group.line} ({group.who})" for group in triage_arrange.victims(triage)]
    return [*lines, *(f"try: {clean(step)}" for step in triage.next)]


def _check_case(suite: ElementTree.Element, classname: str, check: Check) -> None:
    name = f"{check.number:02d} {clean(check.name)}" if check.number else clean(check.name)
    case = ElementTree.SubElement(suite, "testcase", classname=classname, name=name)
    if check.state == "confirmed":
        ElementTree.SubElement(case, "failure", type="confirmed", message=clean(check.evidence))
    elif check.state == "not tested":
        ElementTree.SubElement(case, "skipped", message=clean(check.evidence))
    else:
        ElementTree.SubElement(case, "system-out").text = clean(check.evidence)
