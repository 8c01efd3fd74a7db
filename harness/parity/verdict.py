"""The verdict: two recordings in, one `Verdict` out, by PARITY's precedence.

error > INCONCLUSIVE > DIVERGENT > CONFOUNDED > EQUIVALENT. A recording that is torn, cut short, empty or too small is
INCONCLUSIVE whatever it shows. A required check that was not tested never passes: where nothing diverged and nothing
confounds, the verdict is INCONCLUSIVE for that reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from harness.parity import answers, explain
from harness.parity.answers import Answer, Doubts
from harness.parity.causes import registry as families
from harness.parity.checks.completeness import require_completeness
from harness.parity.checks.excused import excused
from harness.parity.checks.registry import Outcome, Registered, checks, coupled, not_brought, refused, unless_native
from harness.parity.checks.summary import summary
from harness.parity.coverage import coverage, failed_calls, limits, refused_calls
from harness.parity.facts.divergence import DivergenceKey
from harness.parity.facts.evidence import Evidence
from harness.parity.facts.progress_messages import Told, nobody
from harness.parity.gather import gather
from harness.parity.lifted import lifted_stage, stage_steps
from harness.parity.subjects.engines import observed_second_run
from harness.parity.subjects.native_sampler.observed_stage import in_doubt
from harness.parity.subjects.prompts.observed_text import with_text
from harness.parity.subjects.recording.observed_compared_share import too_small
from harness.parity.subjects.recording.observed_consistency import contradictions
from harness.parity.subjects.recording.observed_copies import copies_of_numbers
from harness.parity.subjects.recording.observed_integrity import (
    LEAST,
    Minimum,
    absent_processes,
    failed_jobs,
    integrity,
    same_recording,
    strange_engines,
    too_little,
)
from harness.parity.subjects.recording.observed_replay import replayed
from harness.parity.subjects.recording.observed_resumed import not_shared, shared
from harness.parity.subjects.recording.observed_unknowns import unknowns
from harness.parity.subjects.sampling import checks as sampling_checks
from harness.parity.subjects.sampling.observed_margins import odd_margins
from harness.parity.suspected import confirm_suspicions
from harness.recordings.library import Library
from probes.format import SIDES, FormatError, Run
from reports.model import BETWEEN, EXIT_CODES, OPEN, Check, Parity, Verdict
from reports.text import counted


@dataclass(frozen=True)
class Judged:
    """A verdict with what it was made from, for interventions on engines that are still up. `kinds`: the divergences
    that decided it. `evidence`: None where nothing could be compared."""

    verdict: Verdict
    evidence: Evidence | None = None
    kinds: list[DivergenceKey] = field(default_factory=list)


def judge(
    baseline: Path | str | Run,
    candidate: Path | str | Run,
    *,
    native: bool = True,
    cap: float | None = None,
    minimum: Minimum = LEAST,
    again: Mapping[str, Path | str] | None = None,
    tell: Told = nobody,
) -> Verdict:
    """The verdict of `judged`."""
    return judged(baseline, candidate, native=native, cap=cap, minimum=minimum, again=again, tell=tell).verdict


def judged(
    baseline: Path | str | Run,
    candidate: Path | str | Run,
    *,
    native: bool = True,
    cap: float | None = None,
    minimum: Minimum = LEAST,
    reproduce: str = "",
    again: Mapping[str, Path | str] | None = None,
    lifted_verdict: Verdict | None = None,
    library: Library | None = None,
    tell: Told = nobody,
) -> Judged:
    """Compare two recorded runs. Reads files only; raises nothing for bad input, which is an ERROR verdict.

    `native`: read the native stages, where recorded. `cap`: largest floor that can be noise in nats, instead of the
    one of the model's dtype. `reproduce`: the command that makes this verdict again. `again`: side -> a second run of
    that side's job, with which its floor is measured. `lifted_verdict`: on the lifted stage's recordings, with what
    interventions proved there. `library`: where the command opens recordings, so that it scans none twice. `tell`: is
    told what is being done.
    """
    library = library or Library()
    recordings = []
    paths = [Path(run.path if isinstance(run, Run) else run) for run in (baseline, candidate)]
    second = {side: Path(path) for side, path in (again or {}).items()}
    for path in (*paths, *second.values()):
        try:
            recordings.append(library.open(path, tell=tell))
        except (FormatError, OSError) as error:
            verdict = _early("INCONCLUSIVE" if is_torn_manifest(path) else "ERROR", str(error), paths, reproduce)
            return Judged(replace(verdict, fix=getattr(error, "fix", "")))
    window = replayed(recordings[1]) or stage_steps(recordings) or shared(recordings)
    if window is not None:
        for recording in recordings:
            recording.restrict(window)
    recordings, reruns = recordings[:2], dict(zip(second, recordings[2:], strict=True))
    e, malformed = None, []
    try:
        e = gather(recordings[0], recordings[1], native=native, cap=cap, again=reruns, tell=tell)
        lifted_stage(e, partial(_judged_alone, library), lifted_verdict)
        e.seal()
    except FormatError as error:
        malformed.append(f"malformed recording: {error}")
    if e is None:
        broken = [*malformed, *integrity(dict(zip(SIDES, recordings, strict=True)))]
        return Judged(_early("INCONCLUSIVE", broken[0], paths, reproduce, broken))
    tell("looking for what differs")
    return decided(e, minimum, reproduce)


def decided(e: Evidence, minimum: Minimum = LEAST, reproduce: str = "") -> Judged:
    """The verdict on evidence that was gathered, which it only reads."""
    outcomes = asked(e)
    kinds = kinds_of(outcomes)
    return Judged(_decide(e, outcomes, kinds, minimum, reproduce), e, kinds)


def asked(e: Evidence) -> list[tuple[Registered, Outcome]]:
    """What each check says that judges this evidence."""
    listed = (*checks(), *map(not_brought, (*refused(), *families.refused())))
    listed = tuple(check for check in listed if check.alone or not e.alone)
    return [(check, require_completeness(e, excused(e, check.run(e)))) for check in listed if check.applies(e)]


def _judged_alone(library: Library, baseline: Path, candidate: Path) -> tuple[Verdict, Evidence | None]:
    judgement = judged(baseline, candidate, native=False, library=library)
    return judgement.verdict, judgement.evidence


def is_torn_manifest(path: Path) -> bool:
    """A directory that holds a recording whose run.json is not there or not whole."""
    return path.is_dir() and any((path / name).is_dir() for name in ("events", "tokens")) and not _other_version(path)


def _other_version(path: Path) -> bool:
    try:
        Run(path, strict=False)
    except FormatError as error:
        return "format_version" in str(error)
    return False


# --- the decision ---------------------------------------------------------------------------------


def kinds_of(outcomes: list[tuple[Registered, Outcome]]) -> list[DivergenceKey]:
    """The kinds of divergence that decide, in the order of the checks that confirmed them."""
    confirmed = [outcome for _, outcome in outcomes if outcome.decides and outcome.check.state == "confirmed"]
    return list(dict.fromkeys(kind for outcome in confirmed for kind in outcome.kinds))


def not_tested(e: Evidence, outcomes: list[tuple[Registered, Outcome]]) -> list[Check]:
    """Required checks that nothing settles, tested or not."""
    ruled_out = {outcome.check.name for _, outcome in outcomes if outcome.check.state == "ruled out"}
    return [
        outcome.check
        for check, outcome in outcomes
        if check.required(e) and outcome.check.state in OPEN and outcome.settled_by not in ruled_out
    ]


def _decide(
    e: Evidence,
    outcomes: list[tuple[Registered, Outcome]],
    kinds: list[DivergenceKey],
    minimum: Minimum,
    reproduce: str,
) -> Verdict:
    stop = integrity({side.name: side.recording for side in e.sides})
    if same_recording(e):
        stop.append("the same recording twice proves nothing about the engines")
    stop += [*e.modes_unclear, *absent_processes(e), *strange_engines(e), *too_little(e, minimum)]
    confirmed = [outcome for _, outcome in outcomes if outcome.decides and outcome.check.state == "confirmed"]
    explained = explain.explain(e, kinds)
    named = explain.named(explained, kinds)
    outcomes = [*outcomes, *((check, check.run(e)) for check in map(not_brought, explained.failed))]
    untested = not_tested(e, outcomes)
    if e.unjudged_steps and not untested and not e.confounders and unless_native(e):
        step, reason = next(iter(e.unjudged_steps.items()))
        stop_free = (
            f"the rollouts of {counted(len(e.unjudged_steps), 'step')}, from step {step} on, could not be compared: "
            f"{reason}"
        )
    else:
        stop_free = ""
    compared = e.counts.compared_tokens
    if not stop_free and not untested and coupled(e) and compared < minimum.tokens:
        stop_free = f"only {counted(compared, 'token')} could be compared, at least {minimum.tokens} are needed"
    if not stop_free and coupled(e):
        stop_free = too_small(e, minimum.share)
    parted = observed_second_run.irreproducible(e)
    doubts = Doubts(
        [*failed_jobs(e), *refused_calls(e)],
        [*unknowns(e), *in_doubt(e)],
        [parted] if parted else [],
        [*contradictions(e), *copies_of_numbers(e), *odd_margins(e)],
    )
    metrics = _metrics(e)
    if stop:
        verdict, answer = "INCONCLUSIVE", answers.unjudgeable("INCONCLUSIVE", stop[0])
    elif confirmed:
        verdict, answer = "DIVERGENT", answers.divergent(e, kinds, named, confirmed)
    elif e.confounders:
        verdict, answer = "CONFOUNDED", answers.confounded(e)
    elif doubt := doubts.answer():
        verdict, answer = "INCONCLUSIVE", doubt
    elif untested:
        verdict, answer = "INCONCLUSIVE", answers.untested(untested[0])
    elif stop_free:
        verdict, answer = "INCONCLUSIVE", Answer.of("INCONCLUSIVE", stop_free, "too little was compared")
    else:
        verdict, answer = "EQUIVALENT", answers.equal(e, metrics)
    place = with_text(e, e.earliest(*kinds)) if kinds else None
    missing = list(
        dict.fromkeys(
            [
                *stop,
                *doubts.sentences,
                *([stop_free] if stop_free else []),
                *not_shared(e),
                *e.missing,
                *limits(e),
                *e.unmatched,
                *(item for _, outcome in outcomes for item in outcome.missing),
            ]
        )
    )
    findings = [finding for _, outcome in outcomes for finding in outcome.findings] + failed_calls(e)
    findings = sampling_checks.measured(findings, named if verdict == "DIVERGENT" else [])
    body = Parity(
        place,
        e.tolerance.facts({side.name: side.floor for side in e.sides})
        | ({} if e.finer is None else {"tolerance between engines": e.finer.value}),
        [outcome.check for _, outcome in outcomes],
        [summary(e, side) for side in e.sides],
        metrics,
        dict(e.series),
    )
    full_verdict = Verdict(
        kind="parity",
        verdict=verdict,
        exit_code=EXIT_CODES[verdict],
        reason=answer.reason,
        findings=findings,
        causes=named,
        confounders=[confounder.finding for confounder in e.confounders],
        missing=missing,
        coverage=coverage(e, outcomes),
        figures={},
        parity=body,
        reproduce=reproduce,
        paths={side.name: str(side.recording.path) for side in e.sides},
        evidence=answer.evidence,
    )
    return confirm_suspicions(full_verdict)


def _metrics(e: Evidence) -> dict[str, Any]:
    by_comparison = {
        BETWEEN: e.engines.result(),
        **{f"{side.name} against learner": side.to_learner.result() for side in e.sides},
    }
    return {name: values for name, values in by_comparison.items() if values}


def _early(verdict: str, reason: str, paths: list[Path], reproduce: str, missing: list[str] | None = None) -> Verdict:
    """A verdict before anything could be compared."""
    answer = answers.unjudgeable(verdict, reason)
    return Verdict(
        "parity",
        verdict,
        EXIT_CODES[verdict],
        answer.reason,
        evidence=answer.evidence,
        missing=missing or [reason],
        reproduce=reproduce,
        paths={name: str(path) for name, path in zip(SIDES, paths, strict=True)},
    )
