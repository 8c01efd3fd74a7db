"""The verdict: two recordings in, one `Verdict` out, by a fixed precedence.

ERROR > INCONCLUSIVE > DIVERGENT > CONFOUNDED > EQUIVALENT. A recording that is torn, cut short, empty or too small is
INCONCLUSIVE whatever it shows. A required check that was not tested never passes: where nothing diverged and nothing
confounds, the verdict is INCONCLUSIVE for that reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from harness.command_options import command_line
from harness.parity import answers, explain
from harness.parity.answers import Answer, Doubts
from harness.parity.causes import registry as families
from harness.parity.checks.completeness import require_completeness
from harness.parity.checks.excused import excused
from harness.parity.checks.registry import Outcome, Registered, checks, coupled, not_brought, refused, unless_native
from harness.parity.checks.summary import summary
from harness.parity.coverage import coverage, failed_calls, limits, refused_calls, uncalled_functions, unnoticed_damage
from harness.parity.facts.divergence import DivergenceKey
from harness.parity.facts.evidence import Evidence
from harness.parity.facts.explanation import Explained
from harness.parity.facts.progress_messages import ProgressCallback, ignore_progress
from harness.parity.gather import gather
from harness.parity.lifted import lifted_stage, stage_steps
from harness.parity.origins import with_origins
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
    copies,
    failed_jobs,
    integrity,
    strange_engines,
    too_little,
)
from harness.parity.subjects.recording.observed_promises import unequal_counts
from harness.parity.subjects.recording.observed_replay import replayed
from harness.parity.subjects.recording.observed_resumed import not_shared, shared
from harness.parity.subjects.recording.observed_unknowns import unknowns
from harness.parity.subjects.sampling import checks_findings
from harness.parity.subjects.sampling.observed_margins import odd_margins
from harness.parity.subjects.sampling.observed_modes import REPLAY
from harness.parity.suspected import confirm_suspicions
from harness.recordings.library import Library
from probes.format import SIDES, FormatError, Run
from reports.model import BETWEEN, EXIT_CODES, OPEN, Cause, Check, Finding, Parity, Verdict
from reports.quoting import bounded
from reports.text import counted


@dataclass(frozen=True)
class Judged:
    """A verdict with what it was made from, for interventions on engines that are still up.

    `kinds`: the divergences that decided it. `evidence`: None where nothing could be compared.
    """

    verdict: Verdict
    evidence: Evidence | None = None
    kinds: list[DivergenceKey] = field(default_factory=list)


@dataclass(frozen=True)
class FurtherEvidence:
    """Evidence in addition to the two recordings.

    `again`: side -> a second run of that side's job, with which its floor is measured. `lifted`: the verdict on the
    lifted stage's recordings, with what interventions proved there.
    """

    again: Mapping[str, Path | str] = field(default_factory=dict)
    lifted: Verdict | None = None


NOTHING_FURTHER = FurtherEvidence()


def judge(
    baseline: Path | str | Run,
    candidate: Path | str | Run,
    *,
    native: bool = True,
    cap: float | None = None,
    again: Mapping[str, Path | str] | None = None,
    tell: ProgressCallback = ignore_progress,
) -> Verdict:
    """Return the verdict of `judged`. `again`: as in `FurtherEvidence`."""
    further = FurtherEvidence(again=again or {})
    return judged_pair(baseline, candidate, native=native, cap=cap, further=further, library=Library(tell)).verdict


def judged_pair(
    baseline: Path | str | Run,
    candidate: Path | str | Run,
    *,
    native: bool = True,
    cap: float | None = None,
    further: FurtherEvidence = NOTHING_FURTHER,
    library: Library | None = None,
) -> Judged:
    """Compare two recorded runs. Reads files only. Bad input raises nothing: its verdict is ERROR.

    `native`: read the native stages, where recorded. `cap`: largest floor that can be noise in nats, instead of the one
    of the model's dtype. `library`: where the command opens recordings, so that none is scanned twice.
    """
    library = library or Library()
    recordings = []
    paths = [Path(run.path if isinstance(run, Run) else run) for run in (baseline, candidate)]
    second = {side: Path(path) for side, path in further.again.items()}
    # Second runs are opened behind the pair. Whatever cannot be opened ends it before any step is read.
    for path in (*paths, *second.values()):
        try:
            recordings.append(library.open(path))
        except (FormatError, OSError) as error:
            return Judged(_unreadable(path, error, paths))
    pair = dict(zip(SIDES, recordings, strict=False))  # a second run stands behind the pair
    # A recording equals itself: that would be a pass of nothing.
    if copies(*pair.values()):
        broken = [*integrity(pair), _one_recording(*paths)]
        fix = command_line("audit", str(paths[0])) + "   # judges the one run by itself"
        return Judged(replace(_early("INCONCLUSIVE", broken[0], paths, broken), fix=fix))
    # A replay, a lifted stage and a resumed run cover only some steps: the others are not compared.
    window = replayed(recordings[1]) or stage_steps(recordings) or shared(recordings)
    if window is not None:
        for recording in recordings:
            recording.restrict(window)
    recordings, reruns = recordings[:2], dict(zip(second, recordings[2:], strict=True))
    try:
        builder = gather(recordings[0], recordings[1], native=native, cap=cap, again=reruns, tell=library.tell)
        lifted_stage(builder, partial(_judged_alone, library), further.lifted)
        e = builder.build()
    except FormatError as error:
        broken = [f"malformed recording: {error}", *integrity(pair)]
        return Judged(_early("INCONCLUSIVE", broken[0], paths, broken))
    library.tell("looking for what differs")
    return decided(e)


def _unreadable(path: Path, error: Exception, paths: list[Path]) -> Verdict:
    """Return the verdict on a directory that cannot be opened. A torn run.json is of a run, bad input is not."""
    verdict = _early("INCONCLUSIVE" if is_torn_manifest(path) else "ERROR", str(error), paths)
    return replace(verdict, fix=getattr(error, "fix", ""))


def decided(e: Evidence, minimum: Minimum = LEAST) -> Judged:
    """Return the verdict on gathered evidence, which is only read."""
    outcomes = outcomes_of(e)
    kinds = kinds_of(outcomes)
    return Judged(_decide(e, outcomes, kinds, minimum), e, kinds)


def outcomes_of(e: Evidence) -> list[tuple[Registered, Outcome]]:
    """Return the outcome of each check that can judge this evidence."""
    listed = (*checks(), *map(not_brought, (*refused(), *families.refused())))
    listed = tuple(check for check in listed if check.alone or not e.alone)
    return [(check, require_completeness(e, excused(e, check.run(e)))) for check in listed if check.applies(e)]


def _judged_alone(library: Library, baseline: Path, candidate: Path) -> tuple[Verdict, Evidence | None]:
    judgement = judged_pair(baseline, candidate, native=False, library=library)
    return judgement.verdict, judgement.evidence


def _one_recording(baseline: Path, candidate: Path) -> str:
    if baseline.resolve() == candidate.resolve():
        return f"both sides are the recording {baseline}, and a comparison takes two"
    return f"{baseline} and {candidate} are copies of one recording, and a comparison takes two"


def is_torn_manifest(path: Path) -> bool:
    """Whether a directory holds a recording whose run.json is missing or incomplete."""
    return path.is_dir() and any((path / name).is_dir() for name in ("events", "tokens")) and not _other_version(path)


def _other_version(path: Path) -> bool:
    try:
        Run(path, strict=False)
    except FormatError as error:
        return "format_version" in str(error)
    return False


# --- the decision ---------------------------------------------------------------------------------


def kinds_of(outcomes: list[tuple[Registered, Outcome]]) -> list[DivergenceKey]:
    """Return the kinds of divergence that decide, in the order of the checks that confirmed them."""
    return list(dict.fromkeys(kind for outcome in deciding(outcomes) for kind in outcome.kinds))


def deciding(outcomes: list[tuple[Registered, Outcome]]) -> list[Outcome]:
    """Return the outcomes that make the verdict a failure."""
    return [outcome for _, outcome in outcomes if outcome.decides and outcome.check.state == "confirmed"]


def with_causes(
    e: Evidence, outcomes: list[tuple[Registered, Outcome]], explained: Explained, causes: list[Cause]
) -> list[tuple[Registered, Outcome]]:
    """Return the outcomes with what the causes say of them, and a check for each family of causes that failed."""
    failed = [(check, check.run(e)) for check in map(not_brought, explained.failed)]
    return [*with_origins(outcomes, explained, causes), *failed]


def findings_of(e: Evidence, outcomes: list[tuple[Registered, Outcome]]) -> list[Finding]:
    """Return the findings of the checks, and those on the recordings themselves."""
    findings = [finding for _, outcome in outcomes for finding in outcome.findings]
    return findings + failed_calls(e) + unnoticed_damage(e) + uncalled_functions(e)


def not_tested(e: Evidence, outcomes: list[tuple[Registered, Outcome]]) -> list[Check]:
    """Return the required checks that nothing settles: open themselves, and without another check that decides them."""
    ruled_out = {outcome.check.name for _, outcome in outcomes if outcome.check.state == "ruled out"}
    return [
        outcome.check
        for check, outcome in outcomes
        if check.required(e) and outcome.check.state in OPEN and outcome.settled_by not in ruled_out
    ]


@dataclass(frozen=True)
class _Grounds:
    """What a verdict rests on.

    `unjudgeable`: why nothing can be compared. `too_little`: why what was compared does not suffice; "" where it does.
    """

    unjudgeable: list[str]
    confirmed: list[Outcome]
    doubts: Doubts
    untested: list[Check]
    too_little: str
    unequal: list[str]  # kinds of events of which one run recorded fewer than the other


def _decide(
    e: Evidence,
    outcomes: list[tuple[Registered, Outcome]],
    kinds: list[DivergenceKey],
    minimum: Minimum,
) -> Verdict:
    # Causes first: a check whose difference a cause explains says so, and a cause that failed is a check of its own.
    # What a replay cannot draw is taken out before the grounds, or it would count as untested.
    explained = explain.explain(e, kinds)
    causes = explain.named(explained, kinds)
    outcomes, not_applicable = _within_reach(e, with_causes(e, outcomes, explained, causes))
    grounds = _grounds(e, outcomes, minimum)
    metrics = _metrics(e)
    verdict, answer = _answer(e, grounds, kinds, causes, metrics)
    findings = findings_of(e, outcomes)
    tolerances = e.tolerance.facts({side.name: side.floor for side in e.sides})
    body = Parity(
        first_divergence=with_text(e, e.earliest(*kinds)) if kinds else None,
        floor=tolerances if e.finer is None else tolerances | {"tolerance between engines": e.finer.value},
        checks=[outcome.check for _, outcome in outcomes],
        runs=[summary(e, side) for side in e.sides],
        metrics=metrics,
        series={name: [*values] for name, values in e.series.items()},
        not_applicable=not_applicable,
    )
    full_verdict = Verdict(
        kind="parity",
        verdict=verdict,
        exit_code=EXIT_CODES[verdict],
        reason=answer.reason,
        findings=checks_findings.measured(findings, causes if verdict == "DIVERGENT" else []),
        causes=causes,
        confounders=[confounder.finding for confounder in e.confounders],
        missing=_missing(e, grounds, outcomes),
        coverage=coverage(e, outcomes),
        figures={},
        parity=body,
        paths={side.name: str(side.recording.path) for side in e.sides},
        fix=checks_findings.mapping_command(e, findings),
        evidence=[*answer.evidence, *_by_nature(not_applicable)],
    )
    return confirm_suspicions(bounded(full_verdict))


def _within_reach(
    e: Evidence, outcomes: list[tuple[Registered, Outcome]]
) -> tuple[list[tuple[Registered, Outcome]], list[str]]:
    """Return the outcomes without those that a replay leaves open by its nature, and the names of these checks."""
    drawn = {check.name for check, outcome in outcomes
              if e.mode == REPLAY and check.draws and outcome.check.state in OPEN}  # fmt: skip
    return [pair for pair in outcomes if pair[0].name not in drawn], sorted(drawn)


def _by_nature(not_applicable: list[str]) -> list[str]:
    names = ", ".join(not_applicable)
    return [f"a replay draws nothing, so these checks do not apply to it: {names}"] if names else []


def _grounds(e: Evidence, outcomes: list[tuple[Registered, Outcome]], minimum: Minimum) -> _Grounds:
    untested = not_tested(e, outcomes)
    parted = observed_second_run.irreproducible(e)
    return _Grounds(
        unjudgeable=_unjudgeable(e, minimum),
        confirmed=deciding(outcomes),
        doubts=Doubts(
            failed=[*failed_jobs(e), *refused_calls(e)],
            unknown=[*unknowns(e), *in_doubt(e)],
            parted=[parted] if parted else [],
            contradictions=[*contradictions(e), *copies_of_numbers(e), *odd_margins(e)],
        ),
        untested=untested,
        too_little=_too_little_compared(e, untested, minimum),
        unequal=unequal_counts(e),
    )


def _unjudgeable(e: Evidence, minimum: Minimum) -> list[str]:
    """Return why the recordings cannot be judged, whatever they show."""
    return [
        *integrity({side.name: side.recording for side in e.sides}),
        *e.modes_unclear,
        *absent_processes(e),
        *strange_engines(e),
        *too_little(e, minimum),
    ]


def _too_little_compared(e: Evidence, untested: list[Check], minimum: Minimum) -> str:
    """Return why what was compared does not suffice; "" where it does, or where an untested check already says so."""
    if e.unjudged_steps and not untested and not e.confounders and unless_native(e):
        step, reason = next(iter(e.unjudged_steps.items()))
        steps = counted(len(e.unjudged_steps), "step")
        return f"the rollouts of {steps}, from step {step} on, could not be compared: {reason}"
    if not coupled(e):
        return ""
    compared = e.counts.compared_tokens
    if not untested and compared < minimum.tokens:
        return f"only {counted(compared, 'token')} could be compared, at least {minimum.tokens} are needed"
    return too_small(e, minimum.share)


def _answer(
    e: Evidence, grounds: _Grounds, kinds: list[DivergenceKey], causes: list[Cause], metrics: dict[str, Any]
) -> tuple[str, Answer]:
    """Return the verdict by precedence, and the answer that it begins with.

    A difference outweighs confounders: a check that confirmed one compared only what they do not touch. Every doubt
    outweighs a pass.
    """
    if grounds.unjudgeable:
        return "INCONCLUSIVE", answers.unjudgeable("INCONCLUSIVE", grounds.unjudgeable[0])
    if grounds.confirmed:
        return "DIVERGENT", answers.divergent(e, kinds, causes, grounds.confirmed)
    if e.confounders:
        return "CONFOUNDED", answers.confounded(e)
    if doubt := grounds.doubts.answer():
        return "INCONCLUSIVE", doubt
    if grounds.untested:
        return "INCONCLUSIVE", answers.untested(e, grounds.untested[0])
    if grounds.too_little:
        return "INCONCLUSIVE", Answer.of("INCONCLUSIVE", grounds.too_little, "too little was compared")
    if grounds.unequal:
        return "INCONCLUSIVE", Answer.of(
            "INCONCLUSIVE", grounds.unequal[0], "a recording lacks events that the other has"
        )
    return "EQUIVALENT", answers.equal(e, metrics)


def _missing(e: Evidence, grounds: _Grounds, outcomes: list[tuple[Registered, Outcome]]) -> list[str]:
    """Return what was not compared, each reason once; what stops the verdict comes first."""
    reasons = [
        *grounds.unjudgeable,
        *grounds.doubts.sentences,
        *filter(None, [grounds.too_little]),
        *grounds.unequal,
        *not_shared(e),
        *e.completeness.missing,
        *limits(e),
        *e.completeness.unmatched,
        *(reason for _, outcome in outcomes for reason in outcome.missing),
    ]
    return list(dict.fromkeys(reasons))


def _metrics(e: Evidence) -> dict[str, Any]:
    by_comparison = {
        BETWEEN: e.between_engines.result(),
        **{f"{side.name} against learner": side.to_learner.result() for side in e.sides},
    }
    return {name: values for name, values in by_comparison.items() if values}


def _early(verdict: str, reason: str, paths: list[Path], missing: list[str] | None = None) -> Verdict:
    """Return a verdict from before anything could be compared."""
    answer = answers.unjudgeable(verdict, reason)
    early_verdict = Verdict(
        "parity",
        verdict,
        EXIT_CODES[verdict],
        answer.reason,
        evidence=answer.evidence,
        missing=missing or [reason],
        paths={name: str(path) for name, path in zip(SIDES, paths, strict=True)},
    )
    return bounded(early_verdict)
