"""The check of the lifted stage: whether what half precision shows, a difference or equality, holds in float32."""

from __future__ import annotations

from harness.parity.checks.registry import Outcome, check, outcome
from harness.parity.facts.divergence import Kind
from harness.parity.facts.evidence import Evidence
from reports.model import Finding
from reports.text import counted, figure


def _applies(e: Evidence) -> bool:
    return e.lifted is not None


def _required(e: Evidence) -> bool:
    """Whether a stage was recorded by either side. It must be complete, since what it would have shown is unknown."""
    return e.lifted is not None and e.lifted.required


@check("lifted-precision", required=_required, applies=_applies)
def lifted_precision(e: Evidence) -> Outcome:
    """Both engines at the same half-precision weights, computing in float32."""
    name, result = "lifted-precision", e.lifted
    assert result is not None
    details = dict(result.facts)
    if result.verdict is None:
        return outcome(name, "not tested", f"the lifted stage: {result.skipped}", **details)
    if result.differs:
        details["causes"] = [cause.name for cause in result.verdict.causes]
        return outcome(
            name, "confirmed", f"{result.in_words()}; {result.verdict.reason}", kinds=(Kind.LIFTED.of(),), **details
        )
    text = f"{result.in_words()}, {counted(details['flips'], 'flip')}"
    half = e.between_engines.largest[0]
    if e.between_engines.tokens and half > details["tolerance"]:
        effect = f"max |Δ| {figure(half)} nats in {result.dtype}, {figure(details['largest'])} in float32"
        finding = Finding(
            "lifted precision",
            f"what differs in {result.dtype} and not in float32 with the same weights is arithmetic of the format; "
            f"kernels that only {result.dtype} runs are another code path, which float32 does not show",
            effect,
            where="both",
        )
        return outcome(name, "ruled out", f"{text}; {effect}", findings=[finding], **details)
    return outcome(name, "ruled out", text, **details)
