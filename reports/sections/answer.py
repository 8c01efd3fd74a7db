"""The answer in a few parts, for any kind of verdict: title, reason, cause, first place, fix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from probes.format import SIDES
from reports.headline import fits
from reports.model import UNDECIDED, Cause, Verdict
from reports.sections import parity, triage
from reports.text import clean, first_of, show_apart

if TYPE_CHECKING:
    from reports.doctor_model import Report

TONES = {
    "EQUIVALENT": "green",
    "SOUND": "green",
    "HEALTHY": "green",
    "READY": "green",
    "INCONCLUSIVE": "yellow",
    "CONFOUNDED": "yellow",
    "SLOW": "yellow",
    "INSUFFICIENT": "yellow",
    "MAY FAIL": "yellow",
}


@dataclass(frozen=True)
class Answer:
    """Cleaned texts of an answer.

    `evidence`: sentences below the reason. `parts`: (label, text) of what exists, in this order: cause, first,
    missing, fix.
    """

    title: str
    exit_code: int
    reason: str
    evidence: tuple[str, ...]
    parts: tuple[tuple[str, str], ...]
    tone: str  # green, yellow or red


def of(subject: Verdict | Report) -> Answer:
    """Return the answer of a verdict or of a doctor's report."""
    if isinstance(subject, Verdict):
        return _of_verdict(subject)
    return Answer(
        subject.verdict, subject.exit_code, clean(subject.reason), (), _filled(_doctor(subject)), _tone(subject)
    )


def _of_verdict(verdict: Verdict) -> Answer:
    title, reason, evidence = triage.title(verdict), clean(verdict.reason), tuple(map(clean, verdict.evidence))
    if verdict.in_part and fits(title, reason, verdict.in_part):
        reason = f"{reason}; {verdict.in_part}"
    elif verdict.in_part:
        evidence = (verdict.in_part, *evidence)
    tone = "yellow" if verdict.reservations else _tone(verdict)
    return Answer(title, verdict.exit_code, reason, evidence, _filled(_parity(verdict) + _triage(verdict)), tone)


def _filled(parts: list[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    return tuple((label, text) for label, text in parts if text)


def _tone(subject: Verdict | Report) -> str:
    return TONES.get(subject.verdict, "red" if subject.exit_code else "green")


def coded(title: str, exit_code: int) -> str:
    """Return the title with the exit code of the command, where that is decided."""
    return title if exit_code == UNDECIDED else f"{title} (exit code {exit_code})"


def _parity(verdict: Verdict) -> list[tuple[str, str]]:
    parts = {"cause": "", "unequal": "", "missing": "", "first": first_place(verdict), "fix": clean(verdict.fix)}
    if verdict.causes:
        first, *more = verdict.causes
        suffix = f"; {len(more)} more below" if more else ""
        parts["cause"] = f"{clean(first.name)}, {_blame(first)}{suffix}" if first.name else ""
        parts["fix"] = first.fix
    if verdict.verdict == "CONFOUNDED" and verdict.confounders:
        unequal = verdict.confounders[0]
        parts["unequal"] = f"{clean(unequal.name)}: {clean(unequal.summary)}"
        parts["fix"] = f"make {clean(unequal.name)} equal in both runs, then compare again"
    if verdict.verdict == "INCONCLUSIVE" and verdict.missing and verdict.missing[0] != verdict.reason:
        parts["missing"] = clean(verdict.missing[0])
    return list(parts.items())


def _blame(cause: Cause) -> str:
    party = "party unknown" if cause.party in ("", "unknown") else f"in the {clean(cause.party)}"
    return f"{party}, proven" if cause.proven else party


def first_place(verdict: Verdict) -> str:
    """Return where the runs first differ, on one line; empty where they do not."""
    place = verdict.first_divergence
    if verdict.parity is None or place is None:
        return ""
    facts = [f"{fact.name} {fact.value}" for fact in parity.place_facts(verdict.parity)[:5]]
    where = [text for text in facts if not text.startswith("rank") and "–" not in text and "not per token" not in text]
    baseline, candidate = show_apart([place.baseline, place.candidate])
    sources = parity.sources(place, alone=verdict.kind == "audit")
    first, second = (f"in the {source}" if source in SIDES else source for source in sources)
    return f"{', '.join(where)}: {clean(place.field)} {baseline} {first}, {candidate} {second}"


def _triage(verdict: Verdict) -> list[tuple[str, str]]:
    if verdict.triage is None:
        return []
    culprits, cycle = triage.culprits(verdict.triage), triage.cycle(verdict.triage)
    who = first_of([f"{row.who} {row.process}".strip() for row in culprits], 3)
    circle = f"a cycle: {' waits for '.join(step.waiter for step in [*cycle, *cycle[:1]][:5])}" if cycle else ""
    frame = next((row.frame for row in culprits if row.frame), "")
    try_first = verdict.triage.next[0] if verdict.triage.next else ""
    return [("culprit", who or circle), ("first", frame or clean(verdict.triage.place)), ("fix", clean(try_first))]


def _doctor(report: Report) -> list[tuple[str, str]]:
    order = {"error": 0, "warning": 1, "unknown": 2}
    hazards = sorted((item for item in report.hazards if item.severity in order), key=lambda item: order[item.severity])
    if not hazards:
        return []
    worst = hazards[0]
    return [
        ("cause", f"{clean(worst.what)} ({clean(worst.check)})"),
        ("first", clean(worst.where[0] if worst.where else "")),
        ("seen", clean(worst.measured)),
        ("fix", clean(worst.fix).partition("   # ")[0]),
    ]
