"""The suspicions once the causes are known: a proven cause confirms the suspicion that it belongs to."""

from __future__ import annotations

import dataclasses

from harness.parity.causes.registry import family
from reports.model import SUSPICIONS, Cause, Check, Proof, Verdict
from reports.text import figure

ENVIRONMENT = 9  # number of the suspicion of the environment
_OWN = "without the causes"  # in a check's details: its own state and evidence, for when the causes change


def confirm_suspicions(verdict: Verdict, *, removed_by: list[str] | None = None) -> Verdict:
    """Return the verdict with its suspicions confirmed by its causes. Call it again when the causes have changed.

    `removed_by`: the live interventions that removed every difference. They rule out the environment, which they left
    as it is. Verdicts other than DIVERGENT are returned unchanged.
    """
    body = verdict.parity
    if verdict.verdict != "DIVERGENT" or body is None:
        return verdict
    checks, missing = [], list(verdict.missing)
    for check in body.checks:
        confirmed = _confirmed(_before_confirmation(check), verdict.causes, removed_by or [])
        # What is missing quotes the checks by their words. Where a check's words change, so does its line there.
        if confirmed != check:
            missing = [item for item in missing if item != f"{check.name}: {check.evidence}"]
            missing += [f"{confirmed.name}: {confirmed.evidence}"] if confirmed.state == "not tested" else []
        checks.append(confirmed)
    states: dict[str, int] = {}
    for updated_check in checks:
        states[updated_check.state] = states.get(updated_check.state, 0) + 1
    return dataclasses.replace(
        verdict,
        parity=dataclasses.replace(body, checks=checks),
        missing=missing,
        coverage=verdict.coverage | {"checks": states},
    )


def _before_confirmation(check: Check) -> Check:
    if _OWN not in check.details:
        return check
    details = dict(check.details)
    original = details.pop(_OWN)
    return dataclasses.replace(check, state=original["state"], evidence=original["evidence"], details=details)


def _confirmed(check: Check, causes: list[Cause], removed_by: list[str]) -> Check:
    if check.number not in SUSPICIONS or check.state == "confirmed":
        return check
    proven = [cause for cause in causes if family(cause.key).suspicion_of(cause.key) == check.number]
    original = {_OWN: {"state": check.state, "evidence": check.evidence}}
    if proven:
        claims = "; ".join(f"{cause.name}: {_claim(cause)}" for cause in proven)
        text = f"{claims}; on its own the check was {check.state}: {check.evidence}"
        return dataclasses.replace(check, state="confirmed", evidence=text, details=check.details | original)
    if check.number == ENVIRONMENT and check.state == "not tested" and removed_by:
        text = f"what differs was removed by: {', '.join(removed_by)}; on its own the check was not tested: "
        return dataclasses.replace(
            check, state="ruled out", evidence=text + check.evidence, details=check.details | original
        )
    return check


def _claim(cause: Cause) -> str:
    """Return the cause's summary with its first proof."""
    if not cause.proofs:
        return cause.summary
    return f"{cause.summary} ({in_words(cause.proofs[0])})"


def in_words(proof: Proof) -> str:
    """Return in words what was done, and how much differed before and after it."""
    return f"{proof.intervention}: {figure(proof.before)} {proof.unit} before, {figure(proof.after)} after"
