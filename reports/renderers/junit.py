"""The verdict as JUnit XML: one test case for the verdict itself, and one for every check.

The verdict is a separate case, so that a run that tested nothing (INCONCLUSIVE: every check skipped) is never green.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast
from xml.etree import ElementTree

from reports.doctor_model import Hazard, Passed, Report, Unchecked
from reports.model import OPEN
from reports.nightly_model import Night
from reports.renderers import Renderer
from reports.sections import nightly as night_arrange
from reports.sections import parity as arrange
from reports.sections import triage as triage_arrange
from reports.text import clean

if TYPE_CHECKING:
    from reports.model import Check, Finding, Triage, Verdict
    from reports.renderers import Subject


class JunitRenderer(Renderer):
    name = "junit"
    suffix = ".xml"
    takes = frozenset({"parity", "audit", "triage", "doctor", "nightly"})

    def render(self, subject: Subject) -> str:
        """Return the XML. A confirmed check fails, one that was not tested is skipped.

        The verdict's case fails on exit code 1 and is an error on other codes but 0.
        """
        if isinstance(subject, Night):
            suite = _night(subject)
        else:
            suite = _report(subject) if isinstance(subject, Report) else _suite(cast("Verdict", subject))
        cases = suite.findall("testcase")
        counts = {
            "tests": len(cases),
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


def _suite(verdict: Verdict) -> ElementTree.Element:
    checks = [*arrange.suspicions(verdict.parity), *arrange.other_checks(verdict.parity)] if verdict.parity else []
    name = f"harness.{clean(verdict.kind)}"
    suite = ElementTree.Element("testsuite", name=clean(arrange.heading(verdict)))
    _verdict_case(suite, name, verdict)
    for check in checks:
        _check_case(suite, f"{name}.checks", check)
    return suite


def _report(report: Report) -> ElementTree.Element:
    """Return one case per check: what will break fails (strict: also what may), what could not be checked is
    skipped.
    """
    suite = ElementTree.Element("testsuite", name="doctor")
    items: list[Hazard | Passed | Unchecked] = [*report.hazards, *report.passed, *report.unchecked]
    for item in items:
        name = f"{clean(item.check)} ({clean(', '.join(item.where))})"
        case = ElementTree.SubElement(suite, "testcase", classname="harness.doctor", name=name)
        if isinstance(item, Hazard) and item.severity in report.failing:
            problem = ElementTree.SubElement(case, "failure", type=item.severity, message=clean(item.what))
            problem.text = f"seen: {clean(item.measured)}\nwhy: {clean(item.why)}\nfix: {clean(item.fix)}"
        elif isinstance(item, Hazard):
            text = f"{clean(item.what)}\nseen: {clean(item.measured)}\nfix: {clean(item.fix)}"
            ElementTree.SubElement(case, "system-out").text = text
        elif isinstance(item, Unchecked):
            ElementTree.SubElement(case, "skipped", message=clean(item.reason))
    return suite


def _night(night: Night) -> ElementTree.Element:
    """Return one case per cell: a regression fails, a cell that could not run is an error, one left out is skipped."""
    suite = ElementTree.Element("testsuite", name=clean(night.matrix))
    for result in night.results:
        case = ElementTree.SubElement(suite, "testcase", classname="harness.nightly", name=clean(result.cell))
        case.set("time", f"{result.seconds:.1f}")
        text = "\n".join(clean(line) for line in night_arrange.lines(result))
        if result in night.alarms:
            kind = "error" if result.status == "COULD NOT RUN" else "failure"
            problem = ElementTree.SubElement(
                case, kind, type=result.status, message=clean(night_arrange.headline(result))
            )
            problem.text = text
        else:
            ElementTree.SubElement(case, "system-out").text = f"{result.status}\n{text}"
    for name, why in night.left_out:
        case = ElementTree.SubElement(suite, "testcase", classname="harness.nightly", name=clean(name))
        ElementTree.SubElement(case, "skipped", message=clean(why))
    return suite


def _verdict_case(suite: ElementTree.Element, classname: str, verdict: Verdict) -> None:
    case = ElementTree.SubElement(suite, "testcase", classname=classname, name="verdict")
    if verdict.exit_code:
        kind = "failure" if verdict.exit_code == 1 else "error"
        message = f"{triage_arrange.title(verdict)} (exit code {verdict.exit_code}): {clean(verdict.reason)}"
        problem = ElementTree.SubElement(case, kind, type=clean(verdict.verdict), message=message)
        problem.text = "\n".join(_problem_lines(verdict))
    ElementTree.SubElement(case, "system-out").text = "\n".join(
        [
            *(f"beyond published limits: {clean(sentence)}" for sentence in arrange.beyond_limits(verdict)),
            f"{triage_arrange.title(verdict)}: {clean(verdict.reason)}",
            *(clean(sentence) for sentence in verdict.evidence),
            *map(_finding, verdict.findings),
        ]
    )


def _problem_lines(verdict: Verdict) -> list[str]:
    """Return what a failed verdict rests on, and the command that repeats it."""
    lines = [clean(sentence) for sentence in verdict.evidence]
    for cause in verdict.causes:
        lines.append(f"{clean(cause.name)} ({clean(cause.party)}): {clean(cause.summary)}. {clean(cause.evidence)}")
        lines += [f"  {proof}" for proof in arrange.proofs(cause)]
    lines += map(_finding, verdict.confounders)
    lines += [f"missing: {clean(item)}" for item in verdict.missing]
    if verdict.parity:
        lines += [f"{fact.name}: {fact.value}" for fact in arrange.place_facts(verdict.parity)]
    if verdict.triage:
        lines += _triage_lines(verdict.triage)
    return [*lines, f"reproduce: {clean(verdict.reproduce)}"]


def _finding(finding: Finding) -> str:
    where = f" ({clean(finding.where)})" if finding.where else ""
    effect = f"; effect: {clean(finding.effect)}" if finding.effect else ""
    return f"{clean(finding.name)}{where}: {clean(finding.summary)}{effect}"


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
    elif check.state in OPEN:
        ElementTree.SubElement(case, "skipped", message=clean(check.evidence))
    else:
        ElementTree.SubElement(case, "system-out").text = clean(check.evidence)
