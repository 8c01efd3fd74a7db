"""Check 6: whether every engine parameter reached each engine, means the same there, and was resolved as asked.

Asked against given shows a mapping that drops, inverts or ties a parameter. Given against resolved shows an engine that
changes it. A parameter that was not honoured and changed nothing is a finding that says so.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from harness.parity.checks.registry import Outcome, check, outcome
from harness.parity.facts.evidence import Evidence, Side
from harness.parity.subjects.engines.observed import engines, numbered
from harness.parity.subjects.recording.observed_confounders import differences, show
from harness.parity.subjects.sampling.causes import CONFIG, sampling_key
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
from harness.parity.subjects.sampling.observed import engine_given, engine_infos
from harness.recordings.records.engine_info import NOTHING_REPORTED, EngineInfo
from reports.model import SUSPICIONS, CauseKey, Finding
from scenarios.engines import native_arguments as native_terms
from scenarios.engines import registry
from scenarios.engines.canonical import BY_NAME, parameter_of
from scenarios.settings import Engine

# Parameters that are not asked for on every device: what the engine resolves alone, the number of engines, the router.
_UNASKED = ("kv_cache_dtype", "memory_fraction", "engines", "router")


@check(SUSPICIONS[6], 6, alone=True)
def engine_parameter_map(e: Evidence) -> Outcome:
    """Asked, given, resolved: every canonical engine parameter on each side, and the candidate against the baseline."""
    name = SUSPICIONS[6]
    parameters = _EngineParameters()
    for side in e.sides:
        parameters.add(side, e.mode)
    findings = parameters.altered if e.alone else [*parameters.altered, *_between(e)]
    altered = [finding for finding in parameters.altered if not finding.details.get("default")]
    missing = [f"{name}: {text}" for text in parameters.unknown]
    if parameters.silent:
        missing.insert(0, f"{name}: not reported by the engine: {', '.join(dict.fromkeys(parameters.silent))}")
    conclude = partial(outcome, name, number=6, findings=with_effect(e, findings), missing=missing)
    if wrong := _warnings(findings) or altered:
        text = "; ".join([*unmet(altered), f"{parameters.checked} parameters compared", wrong[0].summary]) + moved(e)
        return conclude("confirmed", text, decides=False)
    if parameters.unknown:
        return conclude("not tested", "; ".join(parameters.unknown))
    return conclude("ruled out", _as_asked(parameters, alone=e.alone))


def _as_asked(parameters: _EngineParameters, *, alone: bool) -> str:
    defaults = [str(finding.cause) for finding in parameters.altered if finding.details.get("default")]
    text = f"{parameters.checked - len(defaults)} parameters were given and resolved as asked"
    if not alone:
        text += " on both sides"
    if defaults:
        text += f"; defaults of no effect there: {', '.join(dict.fromkeys(defaults))}"
    return text


def _warnings(findings: list[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.severity == "warning"]


@dataclasses.dataclass
class _EngineParameters:
    """What the engines did with their parameters.

    `altered`: not honoured. `silent`: asked for, and not reported. `unknown`: why nothing is known of an engine.
    `checked`: count of parameters that were compared.
    """

    altered: list[Finding] = dataclasses.field(default_factory=list)
    silent: list[str] = dataclasses.field(default_factory=list)
    unknown: list[str] = dataclasses.field(default_factory=list)
    checked: int = 0

    def add(self, side: Side, mode: str) -> None:
        """Add the engines of one side."""
        by_engine: dict[int, list[Finding]] = {}
        for engine, info in _infos(side, mode).items():
            asked_parameters, resolved = _asked_parameters(side, info), info.resolved.parameters
            if not resolved or not asked_parameters:
                text = f"the {side.name} recorded no {'resolved' if not resolved else 'asked'} engine parameters"
                self.unknown.append(text + (f" of engine {engine}" if engine else ""))
                continue
            # A parameter that this engine has no argument for, and does not report, is no gap: there is nothing to
            # honour.
            given = engine_given(info)
            unreported = [key for key in asked_parameters if resolved.get(key) is None and given.get(key) is None]
            self.silent += [f"{side.name}: {key}" for key in unreported if _expected(info, key)]
            self.checked += len(asked_parameters) - len(unreported)
            findings = list(_mapped(side, info, asked_parameters))
            findings += _resolved_otherwise(side, info, asked_parameters, {finding.cause for finding in findings})
            by_engine[engine] = findings
        self.altered += of_engines(by_engine)


def _infos(side: Side, mode: str) -> dict[int, EngineInfo]:
    """Return engine -> its first record with resolved parameters, else its first record; an empty one where it has
    none.
    """
    info_by_engine: dict[int, EngineInfo] = {}
    for info in engine_infos(side, mode):
        earlier = info_by_engine.setdefault(info.engine_number, info)
        if not earlier.resolved.parameters and info.resolved.parameters:
            info_by_engine[info.engine_number] = info
    several = numbered(side) if engines(side) > 1 else ()
    return dict.fromkeys(several, NOTHING_REPORTED) | info_by_engine or {0: NOTHING_REPORTED}


def _asked_parameters(side: Side, info: EngineInfo) -> Mapping[str, Any]:
    """Return the canonical engine parameters that this side asked one of its engines for."""
    if info.requested:
        return info.requested
    settings = side.recording.records.settings
    parameters = {**settings.engine.parameters, "dtype": settings.model.dtype}
    return {key: value for key, value in parameters.items() if value is not None and key not in _UNASKED}


def _expected(info: EngineInfo, key: str) -> bool:
    """Whether this engine should report the parameter: not where only another engine has it."""
    return key != "graph_padding" or "graph_padding" in native_terms.table("engine", info.engine_name)


def _mapped(side: Side, info: EngineInfo, asked_parameters: Mapping[str, Any]) -> Iterator[Finding]:
    """Compare asked with given, and see which arguments follow which parameter: a mapping that is right by luck is
    wrong.
    """
    engine, native, given_parameters = info.engine_name, info.arguments, engine_given(info)
    for key, value in asked_parameters.items():
        if key == "generation_config":
            yield from _leak(side, info, given_parameters.get(key))
        else:
            yield from _not_honoured(side, info, key, value, given_parameters.get(key))
    # Parameters that were not asked for, and that the mapping sets.
    for key, got in given_parameters.items():
        meaning = parameter_of(key)
        argument = meaning.native(engine)
        if key not in asked_parameters and native.get(argument) is not None:
            text = f"{key}: nothing was asked, {title(engine)}'s {argument} = {native[argument]!r}"
            text += f": {meaning.note(engine)} ({meaning.trap})"
            yield parameter_finding(side, CONFIG.key(key), text, {"asked": None, "given": got, "native": argument})
    yield from _tied(side, info)


def _not_honoured(side: Side, info: EngineInfo, key: str, value: Any, got: Any) -> Iterator[Finding]:
    """Find out whether the mapping dropped or changed one parameter. `got`: its value in the engine's arguments."""
    engine, meaning = info.engine_name, parameter_of(key)
    argument, resolved = meaning.native(engine), info.resolved.parameters.get(key)
    # `moves` names the native arguments that follow a parameter. One that does not follow was dropped, even where
    # its value happens to be right.
    is_dropped = bool(argument) and argument not in info.moves.get(key, (argument,))
    effective_value = resolved if got is None else got
    is_known = effective_value is not None
    # A fixed value that only suffices here is too small for another request: by chance is exactly as asked.
    as_asked = effective_value == value if is_dropped else meaning.fits(value, effective_value)
    wrong = is_known and not as_asked
    if not is_dropped and (not wrong or got is None):
        return  # honoured; or seen at the live engine only, which `_resolved_otherwise` compares
    text = lost(key, engine, value, got, info.arguments, dropped=is_dropped)
    if is_known and as_asked:
        text += "; it is what was asked here, by chance"
    if resolved is not None and resolved != got:
        text += f"; {title(engine)} resolved {resolved!r}"
    details = {"asked": value, "given": got, "resolved": resolved, "native": argument}
    if wrong:
        yield parameter_finding(side, CONFIG.key(key), text, details)
    else:
        yield parameter_finding(
            side, CONFIG.key(key), text, details | not_passed_on(is_known=is_known), "info", about=""
        )


def _tied(side: Side, info: EngineInfo) -> Iterator[Finding]:
    """Find native arguments that follow a parameter other than their own."""
    engine, native = info.engine_name, info.arguments
    owner = {argument.name: key for key, argument in native_terms.table("engine", engine).items()}
    for key, followers in info.moves.items():
        for argument in followers:
            owner_key = owner.get(argument, key)
            if owner_key == key:
                continue
            value = native.get(argument)
            text = f"{owner_key}: {title(engine)}'s {argument} is tied to {key} and is {value!r} here"
            text += f" ({BY_NAME[owner_key].trap})"
            yield parameter_finding(side, CONFIG.key(owner_key), text, {"tied to": key, "given": value})


def _leak(side: Side, info: EngineInfo, got: Any) -> Iterator[Finding]:
    """Find an engine that reads generation_config.json, and say what the file sets."""
    if not got:
        return
    default_sampling = info.resolved.default_sampling
    listed = ", ".join(f"{key} {value!r}" for key, value in default_sampling.items()) or "it sets no sampling parameter"
    text = f"generation_config: {title(info.engine)} reads the model's generation_config.json: {listed}"
    trap = BY_NAME["generation_config"].trap
    engine = registry.find(info.engine_name)
    at_endpoint = engine is not None and engine.defaults_at_endpoint_only
    where = " (at its OpenAI endpoint only)" if at_endpoint else f" ({trap})"
    yield parameter_finding(
        side,
        CONFIG.key("generation_config"),
        text + where,
        {"file": dict(default_sampling)},
        "warning" if default_sampling else "info",
        about="setting" if default_sampling else "",
    )


def _resolved_otherwise(
    side: Side, info: EngineInfo, asked_parameters: Mapping[str, Any], reported_causes: set[CauseKey | None]
) -> Iterator[Finding]:
    """Find parameters that were given as asked, or not reported as given, and that the live engine resolved
    otherwise.
    """
    resolved, given_parameters, engine = info.resolved.parameters, engine_given(info), info.engine_name
    for key, value in asked_parameters.items():
        got = resolved.get(key)
        if key == "generation_config" or CONFIG.key(key) in reported_causes:
            continue
        meaning = parameter_of(key)
        if got is None or meaning.fits(value, got):
            continue
        left_out = key in given_parameters and given_parameters[key] is None
        if left_out and meaning.native(engine):
            text = lost(key, engine, value, None, info.arguments) + f"; it resolved {got!r}"
            yield parameter_finding(side, CONFIG.key(key), text, {"asked": value, "given": None, "resolved": got})
        else:
            yield _other_value(side, info, key, value, got)


def _other_value(side: Side, info: EngineInfo, key: str, asked: Any, resolved: Any) -> Finding:
    """The finding that an engine runs with another value of a parameter than the one asked for.

    A warning where the value may change results or how much fits into memory, and was not our own default. A parameter
    that the engine does not have at all, and that was left at our default, is no setting that anybody made.
    """
    meaning = parameter_of(key)
    is_our_default = not meaning.results and asked == getattr(Engine(), key, None)
    absent = is_our_default and not meaning.native(info.engine_name)
    severe = (key in BY_NAME and not meaning.more) or key in ("max_model_len", "max_num_seqs")
    return parameter_finding(
        side,
        CONFIG.key(key),
        f"{key}: asked {asked!r}, {title(info.engine)} resolved {resolved!r}",
        {"asked": asked, "resolved": resolved, **({"default": True} if absent else {})},
        "warning" if severe and not is_our_default else "info",
        about="" if absent else "setting",
    )


def _between(e: Evidence) -> Iterator[Finding]:
    """Compare the sides: parameters asked for or resolved differently, and equal numbers that mean different things."""
    baseline_engine, candidate_engine = (side.recording.records.settings.engine.parameters for side in e.sides)
    for key, (a, b) in differences(baseline_engine, candidate_engine).items():
        text = f"{key} was asked as {show(a)} of the baseline and {show(b)} of the candidate"
        yield finding_of_both(CONFIG.key(key), text, {"baseline": a, "candidate": b})
    baseline_infos, candidate_infos = (list(_infos(side, e.mode).values()) for side in e.sides)
    for key, cause, severity, what in (
        ("end_ids", sampling_key("stop_token_ids"), "warning", "by the model's files samples end at"),
        ("kv_cache_dtype", CONFIG.key("kv_cache_dtype"), "info", "the KV cache is of"),
    ):
        a, b = _values(baseline_infos, key), _values(candidate_infos, key)
        if a and b and a != b:
            text = f"{key}: {what} {' and '.join(a)} in the baseline, {' and '.join(b)} in the candidate"
            yield finding_of_both(cause, text, {"baseline": a, "candidate": b}, severity)
    yield from _memory(baseline_infos[0], candidate_infos[0])


def _values(infos: list[EngineInfo], key: str) -> list[str]:
    """Return the values that a side's engines resolved, sorted and without duplicates or missing ones."""
    return sorted({str(info.resolved.parameters.get(key, "")) for info in infos} - {"", "None"})


def _memory(baseline_info: EngineInfo, candidate_info: EngineInfo) -> Iterator[Finding]:
    """Find a share of memory that was copied from one engine to another, where it means something else."""
    if baseline_info.engine == candidate_info.engine:
        return
    meaning, infos = BY_NAME["memory_fraction"], (baseline_info, candidate_info)
    arguments = [meaning.native(info.engine_name) for info in infos]
    shares = [info.arguments.get(argument) for info, argument in zip(infos, arguments, strict=True)]
    if None in shares or shares[0] != shares[1]:
        return
    text = f"memory_fraction: {shares[0]} on both sides: "
    text += "; ".join(
        f"{title(info.engine)}'s {argument} is {meaning.note(info.engine_name)}"
        for info, argument in zip(infos, arguments, strict=True)
    )
    pools = [info.resolved.parameters.get("kv_cache_tokens") for info in infos]
    if None not in pools:
        text += f"; the KV pools hold {pools[0]} and {pools[1]} tokens"
    details = {"fraction": shares[0], "kv_cache_tokens": pools}
    yield finding_of_both(CONFIG.key("memory_fraction"), text, details, "info")
