"""The audit: one recording in, one `Verdict` on that run by itself out.

Its checks are those that compare no two sides (`check(..., alone=True)`), and its causes those that one run shows
(`Rule(..., alone=True)`). The precedence is that of a comparison: ERROR > INCONCLUSIVE for a recording that is torn,
cut short or too small > UNSOUND > INCONCLUSIVE where a required check was not tested > SOUND.
"""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.parity import answers, explain
from harness.parity.answers import Answer, Doubts
from harness.parity.checks.registry import Outcome, Registered
from harness.parity.checks.summary import mode_name, summary
from harness.parity.coverage import by_state, limits, refused_calls
from harness.parity.facts.comparison import ALONE
from harness.parity.facts.divergence import DivergenceKey
from harness.parity.facts.evidence import Evidence
from harness.parity.facts.progress_messages import ProgressCallback, ignore_progress
from harness.parity.gather import gather
from harness.parity.rivals import told_apart
from harness.parity.subjects.prompts.observed_text import with_text
from harness.parity.subjects.recording.observed_consistency import contradictions
from harness.parity.subjects.recording.observed_copies import copies_of_numbers
from harness.parity.subjects.recording.observed_integrity import (
    LEAST,
    Minimum,
    absent_processes,
    damage,
    failed_jobs,
    strange_engines,
    too_little,
)
from harness.parity.subjects.recording.observed_replay import replayed
from harness.parity.subjects.recording.observed_unknowns import unknowns
from harness.parity.subjects.sampling import checks_findings
from harness.parity.subjects.sampling.observed_margins import odd_margins
from harness.parity.verdict import (
    deciding,
    findings_of,
    is_torn_manifest,
    kinds_of,
    not_tested,
    outcomes_of,
    with_causes,
)
from harness.recordings.store import Recording
from probes.format import FormatError
from reports.model import AUDIT_EXIT_CODES, Cause, Parity, Verdict
from reports.quoting import bounded
from reports.text import counted

_NAMED = 3  # checks that a sentence names


def audit(
    path: Path, *, cap: float | None = None, minimum: Minimum = LEAST, tell: ProgressCallback = ignore_progress
) -> Verdict:
    """Judge one recorded run by itself. Reads files only.

    A bad recording raises nothing: its verdict is ERROR or INCONCLUSIVE. `cap`: largest floor that can be noise, in
    nats, instead of the one of the model's dtype.
    """
    try:
        recording = Recording(path, tell=tell)
    except (FormatError, OSError) as error:
        verdict = _early("INCONCLUSIVE" if is_torn_manifest(path) else "ERROR", [str(error)])
        return replace(verdict, fix=getattr(error, "fix", ""))
    window = replayed(recording)
    if window is not None:
        recording.restrict(window)
    try:
        e = gather(recording, None, native=False, cap=cap, tell=tell).build()
    except FormatError as error:
        return _early("INCONCLUSIVE", [f"malformed recording: {error}", *damage(recording, ALONE)])
    tell("looking for what is wrong")
    return decided(e, minimum)


def decided(e: Evidence, minimum: Minimum = LEAST) -> Verdict:
    """Return the verdict on evidence of one run."""
    outcomes = outcomes_of(e)
    kinds, side = kinds_of(outcomes), e.baseline
    stop = [*damage(side.recording, side.name), *e.modes_unclear, *absent_processes(e), *strange_engines(e)]
    stop += too_little(e, minimum)
    doubts = Doubts(
        [*failed_jobs(e), *refused_calls(e)],
        unknowns(e),
        contradictions=[*contradictions(e), *copies_of_numbers(e), *odd_margins(e)],
    )
    wrong = deciding(outcomes)
    explained, untested = explain.explain(e, kinds), not_tested(e, outcomes)
    causes = [told_apart(explanation.cause, e) for explanation in explained.explanations]
    outcomes = with_causes(e, outcomes, explained, causes)
    open_ = explain.remaining(explained, kinds)
    # A fault outweighs doubts and open checks, since one run that is wrong in itself needs no more evidence. What rules
    # out any verdict outweighs it: the fault may be one of the recording.
    if stop:
        verdict, answer = "INCONCLUSIVE", answers.unjudgeable("INCONCLUSIVE", stop[0])
    elif wrong:
        verdict, answer = "UNSOUND", _unsound(e, kinds, causes, wrong)
    elif doubt := doubts.answer():
        verdict, answer = "INCONCLUSIVE", doubt
    elif untested:
        verdict, answer = "INCONCLUSIVE", answers.untested(e, untested[0])
    else:
        verdict, answer = "SOUND", _sound(e, outcomes)
    missing = [*stop, *doubts.sentences, *_not_explained(e, open_), *e.completeness.missing, *limits(e)]
    missing += [*e.completeness.unmatched, *(item for _, outcome in outcomes for item in outcome.missing)]
    full_verdict = Verdict(
        "audit",
        verdict,
        AUDIT_EXIT_CODES[verdict],
        answer.reason,
        checks_findings.measured(findings_of(e, outcomes), causes),
        causes if verdict == "UNSOUND" else [],
        missing=list(dict.fromkeys(missing)),
        coverage=_coverage(e, outcomes),
        parity=_body(e, outcomes, kinds),
        fix=_second_run(e) if verdict == "UNSOUND" and not causes else "",
        evidence=answer.evidence,
    )
    return bounded(full_verdict)


def _body(e: Evidence, outcomes: list[tuple[Registered, Outcome]], kinds: list[DivergenceKey]) -> Parity:
    side, place = e.baseline, e.earliest(*kinds)
    return Parity(
        with_text(e, place) if place is not None else None,
        e.tolerance.facts({side.name: side.floor}),
        [outcome.check for _, outcome in outcomes],
        [summary(e, side)],
        {"against its learner": side.to_learner.result()} if side.to_learner.tokens else {},
    )


def _unsound(e: Evidence, kinds: list[DivergenceKey], causes: list[Cause], wrong: list[Outcome]) -> Answer:
    if causes:
        return answers.divergent(e, kinds, causes, wrong, "UNSOUND")
    checks = ", ".join(outcome.check.name for outcome in wrong)
    evidence = [wrong[0].check.evidence, "which cause it has one run does not show"]
    return Answer.of("UNSOUND", f"something is wrong in {checks}", "something is wrong in several checks", evidence)


def _not_explained(e: Evidence, open_: dict[DivergenceKey, Any]) -> list[str]:
    if not open_:
        return []
    what = ", ".join(kind.words for kind in open_)
    return [f"the cause of: {what}; it takes a second run: {_second_run(e)}"]


def _second_run(e: Evidence) -> str:
    """Return the command that makes, or takes, the second run that shows a cause."""
    run = shlex.quote(str(e.baseline.recording.path))
    if e.baseline.recording.records.manifest.framework:
        return f"harness diff OTHER {run}   # OTHER: a sound run of the same job, or one with another engine"
    return f"harness replay {run}   # draws nothing, trains again on what was drawn: is it the engine or the learner?"


def _sound(e: Evidence, outcomes: list[tuple[Registered, Outcome]]) -> Answer:
    states = [outcome.check.state for _, outcome in outcomes]
    text = f"{counted(len(e.steps), 'step')}, {counted(e.baseline.counts.samples, 'sample')} and "
    text += f"{counted(e.baseline.counts.tokens, 'token')} of one run were examined"
    evidence = [text]
    silent = [outcome.check.name for _, outcome in outcomes if outcome.check.state == "not tested"]
    if silent:
        more = f" and {len(silent) - _NAMED} more" if len(silent) > _NAMED else ""
        evidence.append(f"not tested: {', '.join(silent[:_NAMED])}{more}")
    return Answer(f"{counted(states.count('ruled out'), 'check')} hold", evidence)


def _coverage(e: Evidence, outcomes: list[tuple[Registered, Outcome]]) -> dict[str, Any]:
    return {
        "steps": len(e.steps),
        "samples": e.baseline.counts.samples,
        "tokens": e.baseline.counts.tokens,
        "tokens_against_the_learner": e.baseline.to_learner.tokens,
        "modes": [mode_name(e)],
        **({"cap_set_by_user": e.cap} if e.cap is not None else {}),
        **by_state(outcomes),
    }


def _early(verdict: str, missing: list[str]) -> Verdict:
    """Return the verdict on a run that cannot be read."""
    answer = answers.unjudgeable(verdict, missing[0])
    early_verdict = Verdict(
        "audit", verdict, AUDIT_EXIT_CODES[verdict], answer.reason, evidence=answer.evidence, missing=missing
    )
    return bounded(early_verdict)
