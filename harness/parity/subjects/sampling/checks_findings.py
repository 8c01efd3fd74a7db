"""Findings about parameters: what engines of one side share, and what a finding changed.

Checks 6 (`harness.parity.subjects.engines.checks_parameters`) and 7 (`checks`) make them.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Iterator
from typing import Any

from harness.parity.causes.unexplained import UNEXPLAINED
from harness.parity.facts.evidence import Evidence, Side
from harness.parity.subjects.recording.checks import effect
from harness.parity.subjects.sampling.causes import CONFIG
from harness.parity.subjects.stop_conditions.causes import CAPACITY, LENGTH
from reports.model import Cause, CauseKey, Finding, Subject
from reports.text import agreeing, counted

NOT_PASSED_ON = "not passed on"  # key of a finding's details
# Parameters that show under another name where they cut samples short.
_ACTS_AS = {
    CONFIG.key("kv_cache_tokens"): CAPACITY.key("kv pool"),
    CONFIG.key("max_model_len"): LENGTH.key("context"),
}


def of_engines(by_engine: dict[int, list[Finding]]) -> Iterator[Finding]:
    """Yield the findings of a side's engines: once where all share one, else with the numbers of the engines."""
    engines: dict[tuple[CauseKey | None, str], list[int]] = {}
    finding_by_key = {(finding.cause, finding.summary): finding for of_one in by_engine.values() for finding in of_one}
    for engine, of_one in by_engine.items():
        for key in dict.fromkeys((finding.cause, finding.summary) for finding in of_one):
            engines.setdefault(key, []).append(engine)
    for key, of in engines.items():
        merged = finding_by_key[key]
        if len(of) < len(by_engine):
            which = f"{agreeing(len(of), 'engine', 'engines')} {', '.join(map(str, of))} of {len(by_engine)}: "
            merged = dataclasses.replace(
                merged, summary=which + merged.summary, details={**merged.details, "engines": of}
            )
        yield merged


def parameter_finding(
    side: Side,
    cause: CauseKey,
    text: str,
    details: dict[str, Any],
    severity: Any = "warning",
    about: Subject = "setting",
) -> Finding:
    return Finding(
        name=str(cause),
        summary=text,
        effect="",
        severity=severity,
        where=side.name,
        details=details,
        cause=cause,
        about=about,
    )


def unmet(findings: list[Finding]) -> list[str]:
    """Return the parameters that are not as asked, and those that were not passed on, each group with its count.

    The first group counts as a verdict's reservations do: once for each parameter and side.
    """
    groups: dict[str, dict[tuple[CauseKey | None, str], str]] = {}
    for finding in findings:
        group = "not as asked" if finding.about == "setting" else finding.details.get(NOT_PASSED_ON)
        if group:
            name = str(finding.details.get("name") or (finding.cause and finding.cause.parts[0]) or finding.name)
            groups.setdefault(group, {})[finding.cause, finding.where] = f"{name} of the {finding.where}"
    return [
        f"{group}: {counted(len(parameters), 'parameter')} ({', '.join(parameters.values())})"
        for group, parameters in groups.items()
    ]


def not_passed_on(*, is_known: bool) -> dict[str, str]:
    """Return the detail of a parameter that a mapping dropped or fixed, and that is not known to differ from what was
    asked.
    """
    chance = "not passed on, and as asked by chance" if is_known else "not passed on, and not reported by the engine"
    return {NOT_PASSED_ON: chance}


def finding_of_both(cause: CauseKey, text: str, details: dict[str, Any], severity: Any = "info") -> Finding:
    return Finding(
        name=str(cause), summary=text, effect="", severity=severity, where="both", details=details, cause=cause
    )


def mapping_command(e: Evidence, findings: list[Finding]) -> str:
    """Return the command that checks a user's own mapping, where a finding is about a parameter that it mapped; "" for
    none.
    """
    for side in e.sides:
        records = side.recording.records
        mappings = [info.mapping for info in records.engines if info.mapped_by_others]
        mappings += [request.mapping for request in records.sampling if request.mapped_by_others]
        files = {mapping for mapping in mappings if str(mapping).endswith(".py")}
        engines = {info.engine for info in records.engines if info.engine}
        is_mapped = any(finding.where == side.name and _is_of_a_mapping(finding) for finding in findings)
        if is_mapped and len(files) == len(engines) == 1:
            return f"harness mapping {shlex.quote(str(files.pop()))} --engine {engines.pop()}"
    return ""


def _is_of_a_mapping(finding: Finding) -> bool:
    """Whether a finding is about a setting that a mapping changed or did not pass on."""
    return finding.about == "setting" or NOT_PASSED_ON in finding.details


def moved(e: Evidence) -> str:
    """Return the effect of all differences, to be put behind a sentence; "" where nothing is known of it."""
    moved = effect(e)
    return f"; effect {moved}" if moved else ""


def with_effect(e: Evidence, findings: list[Finding]) -> list[Finding]:
    return [dataclasses.replace(finding, effect=effect(e)) for finding in findings]


def measured(findings: list[Finding], causes: list[Cause]) -> list[Finding]:
    """Return the findings with their measured effect, now that the causes are known.

    Call it again after interventions have changed the causes.
    """
    named = list(dict.fromkeys(cause.name for cause in causes if not UNEXPLAINED.has(cause.key)))
    if not causes:
        return findings
    if any(UNEXPLAINED.has(cause.key) for cause in causes):
        unnamed_effect = "not separated: something beyond the floor is unexplained"
    else:
        unnamed_effect = f"none measured: without {', '.join(named)} nothing differs beyond the floor"
    measured_findings = []
    for finding in findings:
        if finding.cause is not None:
            effect_text = "the divergence: it is a named cause" if _is_named(finding, causes) else unnamed_effect
            finding = dataclasses.replace(finding, effect=effect_text)
        measured_findings.append(finding)
    return measured_findings


def _is_named(finding: Finding, causes: list[Cause]) -> bool:
    """Whether the finding's parameter is a named cause itself, or what a cause on the same side consists of."""
    acts_as = _ACTS_AS.get(finding.cause) if finding.cause else None
    sides = (finding.where, "both")
    return any(
        cause.key == finding.cause or (cause.key == acts_as and cause.details.get("side", cause.party) in sides)
        for cause in causes
    )
