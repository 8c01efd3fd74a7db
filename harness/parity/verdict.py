"""The verdict: two recordings in, one `Verdict` out, by PARITY's precedence.

error > INCONCLUSIVE > DIVERGENT > CONFOUNDED > EQUIVALENT. A recording that is torn, cut short, empty or too small is
INCONCLUSIVE whatever it shows. A required check that was not tested never passes: where nothing diverged and nothing
confounds, the verdict is INCONCLUSIVE for that reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from harness.parity import causes
from harness.parity.checks import eleven as checks
from harness.parity.checks import eleven_engine as checks_engine
from harness.parity.checks import parameter_maps, sizes, surroundings, suspicions
from harness.parity.checks.excused import excused
from harness.parity.checks.registry import CHECKS, Outcome, Registered, coupled, unless_native
from harness.parity.checks.summary import mode_name, summary
from harness.parity.facts import second_run, ties
from harness.parity.facts.boundaries import with_text
from harness.parity.facts.compare import compare
from harness.parity.facts.confounders import Weights
from harness.parity.facts.confounders import find as find_confounders
from harness.parity.facts.evidence import Evidence, Side
from harness.parity.facts.floor import CAPS, Tolerance, measure
from harness.parity.facts.integrity import LEAST, Minimum, integrity, same_recording, too_little
from harness.parity.facts.learners import learners
from harness.parity.facts.one_engine import note_floors
from harness.parity.facts.patience import Told, nobody
from harness.parity.facts.replayed import replayed
from harness.parity.facts.seeded import same_sampler
from harness.parity.facts.weightsync import weight_syncs
from harness.parity.native import NOT_RUN, alpha_of, native_stage, samplers_said
from harness.parity.rules.suspected import followed
from harness.store import Recording
from harness.tables import mapping, names, number
from probes.format import FormatError, Run
from reports.model import EXIT_CODES, SUSPICIONS, Cause, Finding, Parity, Verdict
from reports.text import counted, figure

# Importing them registers their checks.
CHECKED_BY = (checks, checks_engine, suspicions, sizes, surroundings, parameter_maps)


@dataclass(frozen=True)
class Judged:
    """A verdict with what it was made from, for interventions on engines that are still up. `kinds`: the divergences
    that decided it. `evidence`: None where nothing could be compared."""

    verdict: Verdict
    evidence: Evidence | None = None
    kinds: list[str] = field(default_factory=list)


def judge(
    baseline: Path | str | Run,
    candidate: Path | str | Run,
    *,
    native: bool = True,
    cap: float | None = None,
    minimum: Minimum = LEAST,
    reproduce: str = "",
    again: Mapping[str, Path | str] | None = None,
    tell: Told = nobody,
) -> Verdict:
    """The verdict of `judged`."""
    return judged(
        baseline, candidate, native=native, cap=cap, minimum=minimum, reproduce=reproduce, again=again, tell=tell
    ).verdict


def judged(
    baseline: Path | str | Run,
    candidate: Path | str | Run,
    *,
    native: bool = True,
    cap: float | None = None,
    minimum: Minimum = LEAST,
    reproduce: str = "",
    again: Mapping[str, Path | str] | None = None,
    tell: Told = nobody,
) -> Judged:
    """Compare two recorded runs. Reads files only; raises nothing for bad input, which is an ERROR verdict.

    `native`: read the native stages, where recorded. `cap`: largest floor that can be noise in nats, instead of the
    one of the model's dtype. `reproduce`: the command that makes this verdict again. `again`: side -> a second run of
    that side's job, with which its floor is measured. `tell`: is told what is being done.
    """
    recordings = []
    paths = [Path(one.path if isinstance(one, Run) else one) for one in (baseline, candidate)]
    second = {side: Path(path) for side, path in (again or {}).items()}
    for path in (*paths, *second.values()):
        try:
            recordings.append(Recording(path, tell=tell))
        except (FormatError, OSError) as error:
            found = _early("INCONCLUSIVE" if _is_torn_manifest(path) else "ERROR", str(error), paths, reproduce)
            return Judged(found)
    recordings, others = recordings[:2], dict(zip(second, recordings[2:], strict=True))
    window = replayed(recordings[1])
    if window is not None:
        for recording in recordings:
            recording.restrict(window)
    e, malformed = None, []
    try:
        e = gather(recordings[0], recordings[1], native=native, cap=cap, again=others, tell=tell)
    except FormatError as error:
        malformed.append(f"malformed recording: {error}")
    if e is None:
        broken = [*malformed, *integrity(recordings)]
        return Judged(_early("INCONCLUSIVE", broken[0], paths, reproduce, broken))
    tell("looking for what differs")
    registered = sorted(CHECKS, key=lambda one: one.number or len(SUSPICIONS) + 1)
    outcomes = [(one, excused(e, one.run(e))) for one in registered]
    kinds = _kinds(outcomes)
    return Judged(_decide(e, outcomes, kinds, minimum, reproduce), e, kinds)


def _is_torn_manifest(path: Path) -> bool:
    """A directory that holds a recording whose run.json is not there or not whole."""
    return path.is_dir() and any((path / name).is_dir() for name in ("events", "tokens")) and not _other_version(path)


def _other_version(path: Path) -> bool:
    try:
        Run(path, strict=False)
    except FormatError as error:
        return "format_version" in str(error)
    return False


def gather(
    baseline: Recording,
    candidate: Recording,
    *,
    native: bool,
    cap: float | None,
    again: Mapping[str, Recording] | None = None,
    tell: Told = nobody,
) -> Evidence:
    """Everything that two recordings show, before any decision. Raises FormatError for a malformed one."""
    first = {"baseline": baseline, "candidate": candidate}
    repeated = {
        name: second_run.compared(gather(first[name], one, native=False, cap=cap, tell=tell), first.values())
        for name, one in (again or {}).items()
    }
    sides = []
    for name, recording in first.items():
        own = repeated.get(name, second_run.SecondRun())
        sides.append(Side(name, recording, measure(recording, own.pairs, drawn=own.drawn)))
    confounders = find_confounders(baseline, candidate)
    mode = str(mapping(baseline.scenario.get("rollout")).get("mode") or _first_field(baseline, "mode") or "coupled")
    drawn = mode
    if _first_field(candidate, "mode") == "replay":
        mode = "replay"  # the candidate only scored what the baseline had drawn
    sampling = baseline.scenario.get("sampling") or next(
        (mapping(event.get("canonical")) for event in baseline.all("sampling")), {}
    )
    temperature = 1.0 if drawn == "greedy" else number(sampling.get("temperature"), 1.0)
    dtype = str(mapping(baseline.scenario.get("model")).get("dtype") or "")
    floors = [side.floor for side in sides if not repeated or side.name in repeated or side.floor.measured]
    tolerance = Tolerance.of(dtype, floors, scale=_scale(baseline), temperature=temperature, cap=cap)
    e = Evidence(sides[0], sides[1], tolerance, confounders, Weights(baseline, candidate), mode)
    e.notes["second runs"] = repeated
    e.notes["seeded"] = mode == "native" and same_sampler(baseline, candidate)
    e.notes["train"] = bool(
        baseline.scenario.get("train", bool(baseline.count("learner") or candidate.count("learner")))
    )
    if dtype not in CAPS and cap is None:
        e.missing.append(
            f"the model's dtype is {dtype or 'not recorded'}: the strictest cap, {figure(CAPS['float32'])}, was used"
        )
    note_floors(e)
    compare(e, tell)
    weight_syncs(e)
    learners(e)
    if native:
        native_stage(e, alpha=alpha_of(baseline))
    e.settle()
    ties.too_many(e)
    return e


def _first_field(recording: Recording, name: str) -> Any:
    steps = recording.steps("rollout")
    table = recording.table("rollout", steps[0]) if steps else None
    return table.fields.get(name) if table is not None else None


def _scale(baseline: Recording) -> float:
    """The largest |log-probability| that the baseline's learner, the third opinion, computed in the first step."""
    for kind, name in (("experience", "actor_logprob"), ("rollout", "logprob")):
        steps = baseline.steps(kind)
        table = baseline.table(kind, steps[0]) if steps else None
        rows = table.rows(name) if table is not None else None
        if rows is not None and np.isfinite(rows.values).any():
            return float(np.abs(rows.values[np.isfinite(rows.values)]).max())
    return float("nan")


# --- the decision ---------------------------------------------------------------------------------


def _kinds(outcomes: list[tuple[Registered, Outcome]]) -> list[str]:
    """The kinds of divergence that decide, in the order of the checks that confirmed them."""
    confirmed = [found for _, found in outcomes if found.decides and found.check.state == "confirmed"]
    return list(dict.fromkeys(kind for found in confirmed for kind in found.kinds))


def _decide(
    e: Evidence, outcomes: list[tuple[Registered, Outcome]], kinds: list[str], minimum: Minimum, reproduce: str
) -> Verdict:
    stop = integrity([side.recording for side in e.sides])
    if same_recording(e):
        stop.append("the same recording twice proves nothing about the engines")
    stop += too_little(e, minimum)
    confirmed = [found for _, found in outcomes if found.decides and found.check.state == "confirmed"]
    named = causes.find(e, kinds)
    untested = [found.check for one, found in outcomes if one.required(e) and found.check.state == "not tested"]
    if e.unjudged_steps and not untested and not e.confounders and unless_native(e):
        step, reason = next(iter(e.unjudged_steps.items()))
        stop_free = (
            f"the rollouts of {counted(len(e.unjudged_steps), 'step')}, from step {step} on, could not be compared: "
            f"{reason}"
        )
    else:
        stop_free = ""
    compared = e.counts.get("compared_tokens", 0)
    if not stop_free and not untested and coupled(e) and compared < minimum.tokens:
        stop_free = f"only {counted(compared, 'token')} could be compared, at least {minimum.tokens} are needed"
    parted = second_run.irreproducible(e)
    if stop:
        verdict, reason = "INCONCLUSIVE", stop[0]
    elif confirmed:
        verdict, reason = "DIVERGENT", _divergent(e, confirmed, named)
    elif e.confounders:
        more = f" (and {len(e.confounders) - 1} more)" if len(e.confounders) > 1 else ""
        verdict, reason = "CONFOUNDED", e.confounders[0].finding.summary + more
    elif parted or untested or stop_free:
        verdict = "INCONCLUSIVE"
        reason = parted or (f"{untested[0].name} was not tested: {untested[0].evidence}" if untested else stop_free)
    else:
        verdict = "EQUIVALENT"
        covered = f"{counted(len(e.steps), 'step')}, {counted(e.counts.get('samples', 0), 'sample')}"
        reason = f"every check within the floor over {covered} and {compared:,} compared tokens"
        reason += f"; {samplers_said(e)}"
    place = with_text(e, e.earliest(*kinds)) if kinds else None
    missing = list(
        dict.fromkeys(
            [
                *stop,
                *([stop_free] if stop_free else []),
                *([parted] if parted else []),
                *e.missing,
                *_noted(e),
                *e.unmatched,
                *(item for _, found in outcomes for item in found.missing),
            ]
        )
    )
    findings = [finding for _, found in outcomes for finding in found.findings] + _failed_calls(e)
    findings = parameter_maps.measured(findings, named if verdict == "DIVERGENT" else [])
    body = Parity(
        place,
        e.tolerance.facts(e.baseline.floor, e.candidate.floor),
        [found.check for _, found in outcomes],
        [summary(e, side) for side in e.sides],
        _metrics(e),
        e.series,
    )
    found = Verdict(
        "parity",
        verdict,
        EXIT_CODES[verdict],
        reason,
        findings,
        named,
        [one.finding for one in e.confounders],
        missing,
        _coverage(e, outcomes),
        {},
        parity=body,
        reproduce=reproduce,
        paths={side.name: str(side.recording.path) for side in e.sides},
    )
    return followed(found)


def _divergent(e: Evidence, confirmed: list[Outcome], named: list[Cause]) -> str:
    kinds = [kind for found in confirmed for kind in found.kinds]
    names = ", ".join(found.check.name for found in confirmed)
    nothing = f"a difference that nothing recorded explains, in {names}; {confirmed[0].check.evidence}"
    return reason_of(e, kinds, named) or f"{_where(e, kinds)}: {nothing}"


def reason_of(e: Evidence, kinds: list[str], causes: list[Cause]) -> str:
    """One sentence: where the difference begins and its first named cause; "" where no cause is named."""
    explained = [cause.summary for cause in causes if cause.name != "UNEXPLAINED"]
    if not explained:
        return ""
    more = f" (and {len(causes) - 1} more {'cause' if len(causes) == 2 else 'causes'})" if len(causes) > 1 else ""
    return f"{_where(e, kinds)}: {explained[0]}{more}"


def _where(e: Evidence, kinds: list[str]) -> str:
    place = e.earliest(*kinds)
    return f"from step {place.step} on" if place is not None and place.phase != "native" else "in the native stage"


def _noted(e: Evidence) -> list[str]:
    """What limits the evidence without belonging to one check."""
    found = []
    for key, what in (
        ("weights unknown", "the learners' weights were not recorded as equal or unequal"),
        ("prompts unknown", "prompts were not recorded"),
        ("no finish reasons", "finish reasons were not recorded"),
    ):
        steps = e.notes.get(key)
        if steps:
            found.append(f"{what} (step {steps[0]}" + (f" and {len(steps) - 1} more)" if len(steps) > 1 else ")"))
    for count, what in (
        ("tokens not reached under the guide", "tokens were not reached under the guide"),
        ("tokens after the first difference", "tokens after the first difference of their sample were not compared"),
        ("samples with other prompts", "samples had other prompts and were not compared"),
    ):
        if e.counts.get(count):
            found.append(f"{e.counts[count]} {what}")
    unjudged: dict[str, list[int]] = {}
    for step, reason in sorted(e.unjudged_steps.items()):
        unjudged.setdefault(reason, []).append(step)
    for reason, steps in unjudged.items():
        which = f"step{'s' * (len(steps) > 1)} {', '.join(map(str, steps))}"
        if len(steps) > 2 and steps[-1] - steps[0] == len(steps) - 1:
            which = f"steps {steps[0]} to {steps[-1]}"
        found.append(f"the rollouts of {which} were not compared: {reason}")
    for side in e.sides:
        if not side.recording.scenario:
            found.append(
                f"the {side.name}'s run.json has no scenario: its configuration and promised steps are unknown"
            )
        told = side.recording.manifest.get("missing")  # what a framework cannot give, by its adapter
        lines = [one for one in told if isinstance(one, str)] if isinstance(told, list) else []
        again = second_run.of(e, side.name) is not None  # then the floor is not what the adapter cannot give
        found += [f"{side.name}: {one}" for one in lines if not (again and one.startswith("floor:"))]
        if not side.recording.count("data"):
            found.append(f"the {side.name} recorded no digests of its data")
    return found


def _failed_calls(e: Evidence) -> list[Finding]:
    found = []
    for side in e.sides:
        failed = [
            event
            for journal, line in side.recording.lines("call")
            if b'"ok":true' not in line
            for event in [side.recording.parsed(journal, line)]
            if event is not None and event.get("ok") is False
        ]
        if failed:
            first = failed[0]
            text = f"{len(failed)} engine calls failed, the first is {first.get('name')} in step {first.get('step')}: "
            text += str(first.get("message"))
            found.append(Finding("engine calls", text, where=side.name, severity="warning"))
    return found


def _metrics(e: Evidence) -> dict[str, Any]:
    found = {
        "candidate against baseline": e.engines.result(),
        **{f"{side.name} against learner": side.to_learner.result() for side in e.sides},
    }
    return {name: values for name, values in found.items() if values}


def _coverage(e: Evidence, outcomes: list[tuple[Registered, Outcome]]) -> dict[str, Any]:
    counted = ("compared_tokens", "benign_flips", "flips_beyond_margin")
    again: dict[str, second_run.SecondRun] = e.notes["second runs"]
    native = e.notes.get("native")
    replaced: set[str] = set()
    for side in e.sides:
        infos = side.recording.all("engine_info")
        replaced |= {f"{side.name}: {part}" for event in infos for part in names(event.get("replaced"))}
        if not infos or not all(isinstance(event.get("replaced"), list) for event in infos):
            replaced.add(f"{side.name}: not recorded")
    states: dict[str, int] = {}
    for _, found in outcomes:
        states[found.check.state] = states.get(found.check.state, 0) + 1
    return {
        "steps": len(e.steps),
        "steps_not_compared": len(e.unjudged_steps),
        "samples": e.counts.get("samples", 0),
        "tokens": min(side.tokens for side in e.sides),
        **{name: e.counts.get(name, 0) for name in counted},
        "logprobs_beyond_tolerance": e.beyond("logprob"),
        "tokens_after_first_difference": e.counts.get("tokens after the first difference", 0),
        **({"repeated": {name: one.facts() for name, one in again.items()}} if again else {}),
        **({"native_samples": list(native.samples)} if native is not None and not native.skipped else {}),
        "native": native.covered if native is not None else NOT_RUN,
        "modes": [mode_name(e), *(["native"] if native is not None and not native.skipped else [])],
        "replaced": sorted(replaced),
        "checks": states,
    }


def _early(verdict: str, reason: str, paths: list[Path], reproduce: str, missing: list[str] | None = None) -> Verdict:
    """A verdict before anything could be compared."""
    return Verdict(
        "parity",
        verdict,
        EXIT_CODES[verdict],
        reason,
        missing=missing or [reason],
        reproduce=reproduce,
        paths={name: str(path) for name, path in zip(("baseline", "candidate"), paths, strict=True)},
    )
