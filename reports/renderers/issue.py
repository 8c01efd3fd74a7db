"""A bug report in Markdown, ready to paste: bug, reproduction, first divergence, evidence, environment.

The sections are those of the trackers' own forms, looked up in November 2026. It contains no live mention or link.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from probes.distribution import NAME, named
from reports.renderers import Renderer
from reports.renderers.markdown import LIVE, code, escape, fence, findings, first_divergence, hang, table
from reports.sections import answer, parity, triage, versions
from reports.text import clean, show

if TYPE_CHECKING:
    from reports.model import Cause, Parity, Verdict
    from reports.renderers import Subject

MOST_ROWS = 30  # rows of a table: people read an issue


@dataclass(frozen=True)
class Tracker:
    """Where the issue goes. `collect`: the command that prints what its form asks for in addition, where the
    job ran.
    """

    name: str
    prefix: str  # of the title
    collect: str = ""


TRACKERS = {
    "vllm": Tracker("vLLM", "[Bug]: ", "python -m vllm.collect_env"),
    "sglang": Tracker("SGLang", "[Bug] ", "python3 -m sglang.check_env"),
    "verl": Tracker("verl", "[Bug] ", "python scripts/diagnose.py"),
    "openrlhf": Tracker("OpenRLHF", "", "pip list"),
}


class IssueRenderer(Renderer):
    name = "issue"
    suffix = ".issue.md"

    def render(self, subject: Subject) -> str:
        return "\n".join(_issue(cast("Verdict", subject))).rstrip("\n") + "\n"


def _issue(verdict: Verdict) -> list[str]:
    if not verdict.exit_code:
        return [f"{triage.title(verdict)}: {escape(verdict.reason)}", "", "There is nothing to report."]
    place = answer.of(verdict)
    cause = verdict.causes[0] if verdict.causes else None
    trackers = _trackers(verdict)
    prefix = trackers[0].prefix if len(trackers) == 1 else "[Bug] "
    subject = f"{cause.name}: {cause.summary}" if cause else verdict.reason or place.title
    title = LIVE.sub(r"\1 ", clean(prefix + subject)[:250]).replace("<", "‹").replace(">", "›")
    lines = [f"<!-- Title: {title} -->", "", "### Describe the bug", ""]
    lines += [f"{escape(verdict.reason)}", ""]
    lines += _causes(verdict.causes)
    lines += _reproduction(verdict)
    lines += ["### Expected behavior", "", _expected(verdict), ""]
    if verdict.parity:
        lines += first_divergence(verdict.parity)
    if verdict.triage:
        lines += hang(verdict.triage)
    lines += _evidence(verdict)
    lines += _environment(verdict, trackers)
    return lines


def _causes(causes: list[Cause]) -> list[str]:
    lines = []
    for cause in causes:
        lines.append(f"- <b>{escape(cause.name)}</b> ({escape(cause.party)}): {escape(cause.summary)}")
        if cause.evidence:
            lines.append(f"  - evidence: {escape(cause.evidence)}")
        lines += [f"  - proof: {escape(proof)}" for proof in parity.proofs(cause)]
    return [*lines, ""] if lines else []


def _trackers(verdict: Verdict) -> list[Tracker]:
    """Return the trackers of the engines that the first cause blames; of both where it blames neither."""
    side = verdict.causes[0].party if verdict.causes else ""
    blamed = [run for run in verdict.runs if run.side == side] or verdict.runs
    names = [run.backend for run in blamed]
    if verdict.triage:
        names += [party.engine for party in verdict.triage.culprits]
    engines = dict.fromkeys(name.partition("@")[0].lower() for name in names)
    return [TRACKERS[engine] for engine in engines if engine in TRACKERS]


def _reproduction(verdict: Verdict) -> list[str]:
    lines = ["### Reproduction", ""]
    if not verdict.reproduce:
        return [*lines, "The command was not recorded.", ""]
    command = clean(verdict.reproduce)
    lines += [*fence(f"{_needs(command)}\n{command}"), ""]
    place = verdict.first_divergence
    if place is not None and place.step >= 0 and command.startswith("harness parity") and "--steps" not in command:
        lines += [f"The first divergence is in step {place.step}: {code(f'--steps {place.step + 1}')} is enough.", ""]
    return lines


def _needs(command: str) -> str:
    """Return a comment on what the command needs. Readers have no checkout, and no package index has the harness."""
    extras = {"parity": "parity", "replay": "parity", "diff": "diff", "audit": "diff"}
    extra = extras.get([*command.split(), "", ""][1], "")
    return f"# with {NAME}{named(*filter(None, [extra]))}, installed from its checkout or a wheel"


def _expected(verdict: Verdict) -> str:
    if verdict.triage and verdict.triage.hang:
        return f"No hang ({escape(verdict.triage.name or 'unknown kind')})."
    tolerance = verdict.parity.floor.get("tolerance") if verdict.parity else None
    within = f" within the measured rounding of {escape(show(tolerance))} nats" if isinstance(tolerance, float) else ""
    return f"Equal tokens, and log-probabilities equal{within}, for equal prompts, weights, seeds and parameters."


def _evidence(verdict: Verdict) -> list[str]:
    body, lines = verdict.parity, []
    if body:
        checks = [*parity.suspicions(body), *parity.other_checks(body)]
        confirmed = [check for check in checks if check.state == "confirmed"]
        lines += [f"- {escape(check.name)}: {escape(check.evidence)}" for check in confirmed[:MOST_ROWS]]
        if compared := verdict.coverage.get("compared_tokens"):
            lines.append(f"- compared: {escape(compared)} tokens; checks: {escape(parity.tally(checks))}")
        lines += [f"- outside published limits: {escape(line)}" for line in parity.beyond_limits(verdict)]
    lines += [f"- missing: {escape(item)}" for item in verdict.missing[:MOST_ROWS]]
    lines = ["### Evidence", "", *lines, ""] if lines else []
    lines += findings("What else differs between the runs", verdict.confounders)
    return lines + findings("Findings", parity.notes(verdict)[:MOST_ROWS])


def _environment(verdict: Verdict, trackers: list[Tracker]) -> list[str]:
    lines = ["### Environment", "", *_versions(verdict)]
    if verdict.parity:
        lines += _settings(verdict.parity)
    lines += [f"{tracker.name} asks for the output of {code(tracker.collect)} besides." for tracker in trackers]
    lines += ["", f"Judged by {code('rlhf-harness')}; {escape(triage.title(verdict))}, exit code {verdict.exit_code}."]
    return lines


def _versions(verdict: Verdict) -> list[str]:
    """Return a table of the versions that each run recorded."""
    sides = {run.side: {fact.name: code(fact.value) for fact in versions.of(run)} for run in verdict.runs}
    sides = {side: values for side, values in sides.items() if values}
    if not sides:
        return ["No versions were recorded.", ""]
    names = dict.fromkeys(name for values in sides.values() for name in values)
    rows = [[escape(name), *(values.get(name, "") for values in sides.values())] for name in names]
    return table(["", *map(escape, sides)], rows)


def _settings(body: Parity) -> list[str]:
    """Return a table of the settings that differ between the runs."""
    rows = [[escape(row.title), *map(code, row.values)] for row in parity.side_by_side(body.runs) if row.changed]
    head = ["differs", *(escape(run.side) for run in body.runs)]
    return table(head, rows[:MOST_ROWS]) if rows else []
