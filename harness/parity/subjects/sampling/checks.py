"""Check 7: whether every sampling parameter reached each engine and means the same there.

Asked against given shows a mapping that drops or changes a parameter. The native stage shows whether the engines' own
samplers draw alike. Check 6, of the engine parameters, is in `harness.parity.subjects.engines.checks_parameters`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from harness.parity.checks.registry import Outcome, check, outcome
from harness.parity.facts.divergence import DivergenceKey, Kind, Stage
from harness.parity.facts.evidence import Evidence, Side
from harness.parity.subjects.engines.observed import engines, numbered
from harness.parity.subjects.native_sampler.observed_stage import samplers_said
from harness.parity.subjects.recording.observed_confounders import differences, show
from harness.parity.subjects.sampling.causes import altered_key, sampling_key
from harness.parity.subjects.sampling.causes_sampler import JOINT
from harness.parity.subjects.sampling.checks_findings import (
    finding_of_both,
    moved,
    not_passed_on,
    of_engines,
    parameter_finding,
    unmet,
    with_effect,
)
from harness.parity.subjects.sampling.checks_meaning import lost, title
from harness.parity.subjects.sampling.observed import (
    altered,
    engine_infos,
    engines_sampling,
    sampling_request,
    sampling_requests,
)
from harness.recordings.records.engine_info import SamplingRequest
from reports.model import SUSPICIONS, Finding
from reports.text import figure
from scenarios.engines.canonical import BY_NAME
from scenarios.engines.native import apart


@check(SUSPICIONS[7], 7, alone=True, draws=True)
def sampling_parameter_map(e: Evidence) -> Outcome:
    """Canonical sampling parameters asked against given, the sides against each other, and the engines' own samplers by
    their samples."""
    name, number = SUSPICIONS[7], 7
    findings = [finding for side in e.sides for finding in _sampling(e, side)]
    given_otherwise = {finding.details.get("name") for finding in findings}
    # Values that differ between the sides, unless a finding about one side says so already.
    shared_modes = () if e.alone else sampling_requests(e.baseline).keys() & sampling_requests(e.candidate).keys()
    for mode in shared_modes:
        baseline_sampling, candidate_sampling = (sampling_request(side, mode).requested for side in e.sides)
        for key, (a, b) in differences(baseline_sampling, candidate_sampling).items():
            if key not in given_otherwise:
                text = f"{key} is {show(a)} in the baseline and {show(b)} in the candidate ({mode})"
                findings.append(finding_of_both(sampling_key(key), text, {"name": key, "baseline": a, "candidate": b}))
                given_otherwise.add(key)
    result = e.native
    silent = _silent(e)
    if findings:
        text = "; ".join([*unmet(findings), *(finding.summary for finding in findings[:3])]) + moved(e)
        return outcome(name, "confirmed", text, number=number, decides=False, findings=with_effect(e, findings))
    if native_kinds := [key for key in e.first if key.kind.stage is Stage.NATIVE]:
        native_places = "; ".join(_native_place(e, key) for key in native_kinds[:3])
        if any(key.kind is Kind.NATIVE_PROMPT for key in native_kinds):  # other prompts have other answers
            text = f"parameters agree; the native stage says nothing of them, its prompts differ: {native_places}"
            return outcome(name, "not tested", text, number=number)
        text = f"parameters agree, but the native stage differs: {native_places}"
        return outcome(name, "confirmed", text, number=number, decides=False)
    if silent:
        return outcome(name, "not tested", f"no sampling parameters {silent} were recorded", number=number)
    if e.alone:
        return outcome(
            name, "ruled out", "the engine was given every sampling parameter as it was asked", number=number
        )
    # Equal parameters are not enough: the native stage must also show that the samplers draw alike.
    text = f"parameters agree; {samplers_said(e)}"
    if result is None or result.skipped or result.absent or result.unread:
        return outcome(name, "not tested", text, number=number)
    if not result.adequate:
        return outcome(name, "undecided", text, number=number)
    smallest = min(test["p_holm"] for test in result.tests.values())
    text = f"parameters agree; native stage: {len(result.tests):,} tests, smallest corrected p {figure(smallest)}"
    return outcome(name, "ruled out", text, number=number)


def _native_place(e: Evidence, key: DivergenceKey) -> str:
    """Return what differs in the native stage, of which side, and how."""
    place = e.first[key].place
    return f"{place.field}{f' of the {key.side}' if key.side else ''}: {place.context}"


def _silent(e: Evidence) -> str:
    """Name the side, engine or mode whose sampling parameters were not recorded; "" where all were.

    The native stage counts only where it is compared.
    """
    stages = e.mode == "native" or (e.native is not None and not e.native.skipped)
    sampled_modes = dict.fromkeys(mode for side in e.sides for mode in sampling_requests(side))
    modes = [mode for mode in sampled_modes if mode != "native" or stages]
    for side in e.sides:
        for mode in modes or ("",):
            where = f"of the {side.name}{f' in {mode} mode' if mode else ''}"
            spoke = {request.engine_number for request in engines_sampling(side, mode) if request.requested}
            if not spoke:
                return where
            if lacking := [rank for rank in numbered(side) if rank not in spoke] if engines(side) > 1 else []:
                return f"of engine {lacking[0]} {where}"
    return ""


def _sampling(e: Evidence, side: Side) -> Iterator[Finding]:
    """Return the sampling parameters that did not reach this side's engines as asked, in any mode."""
    by_engine: dict[int, list[Finding]] = {}
    names_by_engine: dict[int, set[str]] = {}
    for mode in sampling_requests(side):
        for request in engines_sampling(side, mode):
            engine = request.engine_number
            by_engine.setdefault(engine, []).extend(
                _sampled(e, side, mode, request, names_by_engine.setdefault(engine, set()))
            )
    return of_engines(by_engine)


def _sampled(
    e: Evidence, side: Side, mode: str, request: SamplingRequest, reported_names: set[str]
) -> Iterator[Finding]:
    """Return them for one engine in one mode. `reported_names`: parameters already found for it in another mode."""
    infos = engine_infos(side, e.mode)
    engine = (infos[0].engine or "") if infos else "the engine"
    scenario, requested = side.recording.records.settings.sampling, request.requested
    native, moves = request.arguments, request.moves
    for change in altered(side, mode, request):
        if change.name in reported_names:
            continue
        reported_names.add(change.name)
        dropped = change.name in moves and BY_NAME[change.name].native(engine) not in moves[change.name]
        text = lost(change.name, engine, change.asked, change.given, native, dropped=dropped)
        if change.leaked:
            text = f"{change.name}: asked {change.asked!r}, left out, so that the model's generation_config.json says "
            text += repr(change.given)
        yield parameter_finding(side, altered_key(change), text, change.details | {"name": change.name})
    # Parameters that the mapping dropped, though their values happen to be right.
    for key in requested:
        argument = BY_NAME[key].native(engine) if key in BY_NAME else ""
        if key in reported_names or key not in moves or not argument or argument in moves[key]:
            continue
        reported_names.add(key)
        text = (
            lost(key, engine, requested[key], request.effective.get(key), native, dropped=True)
            + "; it is what was asked here, by chance"
        )
        details = {"name": key, "asked": requested[key], **not_passed_on(is_known=True)}
        yield parameter_finding(side, sampling_key(key), text, details, "info", about="")
    # Parameters that mean something else in this engine.
    for key, what in request.unlike.items():
        names_of = apart(key)
        cause = JOINT if names_of == ("top_k", "top_p") else sampling_key(names_of[0])
        yield parameter_finding(side, cause, f"{key} in {title(engine)}: {what}", {"name": key, "mode": mode})
    # Values that the engine was asked for, and that are not those of the scenario.
    for key, (a, b) in (differences(scenario, requested) if scenario else {}).items():
        if a is not None and key not in reported_names and not (mode == "native" and _of_both(e, mode, key, b)):
            text = f"{key}: asked {show(a)}, the {side.name}'s engine samples with {show(b)} ({mode})"
            reported_names.add(key)
            yield parameter_finding(side, sampling_key(key), text, {"name": key, "asked": a, "used": b})


def _of_both(e: Evidence, mode: str, key: str, value: Any) -> bool:
    """Whether both sides ask for the same value in this mode. The native stage may have settings of its own."""
    return all(sampling_request(side, mode).requested.get(key) == value for side in e.sides)
