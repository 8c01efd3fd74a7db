"""Check 7: whether every sampling parameter reached each engine and means the same there.

Asked against given shows a mapping that drops or changes a parameter. The native stage shows whether the engines' own
samplers draw alike. Check 6, of the engine parameters, is in `harness.parity.subjects.engines.checks_parameters`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from harness.parity.checks.registry import Outcome, check, outcome
from harness.parity.facts.divergence import DivergenceKey, Kind, Stage
from harness.parity.facts.evidence import Evidence, Side
from harness.parity.subjects.engines.observed import engines, numbered
from harness.parity.subjects.native_sampler.observed_stage import samplers_clause
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
from scenarios.engines.canonical import parameter_of
from scenarios.engines.native import apart


@check(SUSPICIONS[7], 7, alone=True, draws=True)
def sampling_parameter_map(e: Evidence) -> Outcome:
    """Canonical sampling parameters asked against given, the sides against each other, and the engines' own samplers by
    their samples."""
    findings = [finding for side in e.sides for finding in _sampling(e, side)]
    findings += _between(e, {finding.details.get("name") for finding in findings})
    if findings:
        text = "; ".join([*unmet(findings), *(finding.summary for finding in findings[:3])]) + moved(e)
        return _outcome("confirmed", text, decides=False, findings=with_effect(e, findings))
    if native_kinds := [key for key in e.first if key.kind.stage is Stage.NATIVE]:
        return _native_difference(e, native_kinds)
    if silent := _silent(e):
        return _outcome("not tested", f"no sampling parameters {silent} were recorded")
    if e.alone:
        return _outcome("ruled out", "the engine was given every sampling parameter as it was asked")
    return _equal_samplers(e)


_outcome = partial(outcome, SUSPICIONS[7], number=7)


def _between(e: Evidence, reported_names: set[Any]) -> Iterator[Finding]:
    """Find values that differ between the sides, except of parameters that a finding about one side reports."""
    if e.alone:
        return
    for mode in sampling_requests(e.baseline).keys() & sampling_requests(e.candidate).keys():
        baseline_sampling, candidate_sampling = (sampling_request(side, mode).requested for side in e.sides)
        for key, (a, b) in differences(baseline_sampling, candidate_sampling).items():
            if key not in reported_names:
                reported_names.add(key)
                text = f"{key} is {show(a)} in the baseline and {show(b)} in the candidate ({mode})"
                yield finding_of_both(sampling_key(key), text, {"name": key, "baseline": a, "candidate": b})


def _native_difference(e: Evidence, native_kinds: list[DivergenceKey]) -> Outcome:
    places = "; ".join(_native_place(e, key) for key in native_kinds[:3])
    if any(key.kind is Kind.NATIVE_PROMPT for key in native_kinds):  # other prompts have other answers
        text = f"parameters agree; the native stage says nothing of them, its prompts differ: {places}"
        return _outcome("not tested", text)
    return _outcome("confirmed", f"parameters agree, but the native stage differs: {places}", decides=False)


def _equal_samplers(e: Evidence) -> Outcome:
    """Equal parameters are not enough: the native stage must also show that the samplers draw alike."""
    result, text = e.native, f"parameters agree; {samplers_clause(e)}"
    if result is None or result.skipped or result.absent or result.unread:
        return _outcome("not tested", text)
    if not result.adequate:
        return _outcome("undecided", text)
    smallest = min(test["p_holm"] for test in result.tests.values())
    text = f"parameters agree; native stage: {len(result.tests):,} tests, smallest corrected p {figure(smallest)}"
    return _outcome("ruled out", text)


def _native_place(e: Evidence, key: DivergenceKey) -> str:
    """Return what differs in the native stage, of which side, and how."""
    place = e.first[key].place
    return f"{place.field}{f' of the {key.side}' if key.side else ''}: {place.context}"


def _silent(e: Evidence) -> str:
    """Name the side, engine or mode whose sampling parameters were not recorded; "" where all were.

    The native stage counts only where it is compared.
    """
    modes = dict.fromkeys(mode for side in e.sides for mode in sampling_requests(side))
    if e.mode != "native" and e.compared_native is None:
        modes.pop("native", None)
    modes_asked = tuple(modes) or ("",)  # without any recorded mode, a side is asked for its parameters in general
    silent = (_silent_in(side, mode) for side in e.sides for mode in modes_asked)
    return next(filter(None, silent), "")


def _silent_in(side: Side, mode: str) -> str:
    """Name the side or engine that recorded no sampling parameters in a mode; "" where all did."""
    where = f"of the {side.name} in {mode} mode" if mode else f"of the {side.name}"
    speaking = {request.engine_number for request in engines_sampling(side, mode) if request.requested}
    if not speaking:
        return where
    lacking = [number for number in numbered(side) if number not in speaking]
    return f"of engine {lacking[0]} {where}" if lacking and engines(side) > 1 else ""


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
    engine = infos[0].engine_name if infos else "the engine"
    yield from _altered_values(side, mode, request, engine, reported_names)
    yield from _right_by_chance(side, request, engine, reported_names)
    yield from _other_meanings(side, mode, request, engine)
    for key, (a, b) in _other_than_scenario(side, request).items():
        if a is None or key in reported_names:
            continue
        if mode == "native" and _of_both(e, mode, key, b):
            continue
        text = f"{key}: asked {show(a)}, the {side.name}'s engine samples with {show(b)} ({mode})"
        reported_names.add(key)
        yield parameter_finding(side, sampling_key(key), text, {"name": key, "asked": a, "used": b})


def _altered_values(
    side: Side, mode: str, request: SamplingRequest, engine: str, reported_names: set[str]
) -> Iterator[Finding]:
    """Find parameters whose value the mapping dropped or changed."""
    moves = request.moves
    for change in altered(side, mode, request):
        if change.name in reported_names:
            continue
        reported_names.add(change.name)
        dropped = change.name in moves and parameter_of(change.name).native(engine) not in moves[change.name]
        text = lost(change.name, engine, change.asked, change.given, request.arguments, dropped=dropped)
        if change.leaked:
            text = f"{change.name}: asked {change.asked!r}, left out, so that the model's generation_config.json says "
            text += repr(change.given)
        yield parameter_finding(side, altered_key(change), text, change.details | {"name": change.name})


def _right_by_chance(side: Side, request: SamplingRequest, engine: str, reported_names: set[str]) -> Iterator[Finding]:
    """Find parameters that the mapping dropped, although their values are right this time."""
    moves = request.moves
    for key, value in request.requested.items():
        argument = parameter_of(key).native(engine)
        if key in reported_names or key not in moves or not argument or argument in moves[key]:
            continue
        reported_names.add(key)
        text = lost(key, engine, value, request.effective.get(key), request.arguments, dropped=True)
        text += "; it is what was asked here, by chance"
        details = {"name": key, "asked": value, **not_passed_on(is_known=True)}
        yield parameter_finding(side, sampling_key(key), text, details, "info", about="")


def _other_meanings(side: Side, mode: str, request: SamplingRequest, engine: str) -> Iterator[Finding]:
    """Find parameters that mean something else in this engine."""
    for key, what in request.unlike.items():
        names_of = apart(key)
        cause = JOINT if names_of == ("top_k", "top_p") else sampling_key(names_of[0])
        yield parameter_finding(side, cause, f"{key} in {title(engine)}: {what}", {"name": key, "mode": mode})


def _other_than_scenario(side: Side, request: SamplingRequest) -> dict[str, tuple[Any, Any]]:
    """Return the values of the scenario and of the engine's request where they differ."""
    scenario = side.recording.records.settings.sampling
    return differences(scenario, request.requested) if scenario else {}


def _of_both(e: Evidence, mode: str, key: str, value: Any) -> bool:
    """Whether both sides ask for the same value in this mode. The native stage may have settings of its own."""
    return all(sampling_request(side, mode).requested.get(key) == value for side in e.sides)
