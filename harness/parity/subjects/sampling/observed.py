"""What each side asked for, was given and resolved, from its recording. Recordings of frameworks work too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from harness.parity.facts.comparison import RecordedSide
from harness.parity.facts.evidence import Evidence
from harness.recordings.records.engine_info import (
    NOTHING_REQUESTED,
    EngineInfo,
    Resolved,
    SamplingParameters,
    SamplingRequest,
)
from harness.recordings.records.values import equal_values
from scenarios.engines import native_arguments


@dataclass(frozen=True)
class Altered:
    """One canonical sampling parameter that an engine was not given as asked.

    `by`: the parameter that undoes it in the engine, or the parameter itself. `leaked`: its value comes from
    generation_config.json.
    """

    side: str
    name: str
    asked: Any
    given: Any
    by: str
    leaked: bool

    @property
    def details(self) -> dict[str, Any]:
        return {"side": self.side, "asked": self.asked, "given": self.given}


def engine_infos(side: RecordedSide, mode: str) -> tuple[EngineInfo, ...]:
    """Return the records of the engines that sampled in this mode. The native stage has an engine of its own."""
    records = side.recording.records
    modes = {request.file: request.mode for request in records.sampling}
    return tuple(info for info in records.engines if modes.get(info.file) == mode) or records.engines


def engine_given(info: EngineInfo) -> Mapping[str, Any]:
    """Return the canonical engine parameters that the engine was given; {} where its arguments are not known here."""
    if info.received or not info.arguments:
        return info.received
    received: dict[str, Any] = {}
    for name, argument in native_arguments.table("engine", info.engine_name).items():
        if argument.name in info.arguments:
            with suppress(TypeError, ValueError, AttributeError):  # a value of another type cannot be this argument
                received[name] = argument.value_in(info.arguments)
    return received


def engines_sampling(side: RecordedSide, mode: str) -> list[SamplingRequest]:
    """Return the sampling requests of a mode, one for each engine of the side."""
    return [request for request in side.recording.records.sampling if (request.mode or "") == mode]


def sampling_requests(side: RecordedSide) -> dict[str, SamplingRequest]:
    """Return mode -> sampling request, that of the last engine where there are several; "" is an unrecorded mode."""
    return {request.mode or "": request for request in side.recording.records.sampling}


def sampling_request(side: RecordedSide, mode: str) -> SamplingRequest:
    """Return the sampling request of a mode, that of the last engine where there are several; else an empty one."""
    return sampling_requests(side).get(mode, NOTHING_REQUESTED)


def sampling_given(side: RecordedSide, mode: str) -> SamplingParameters:
    """Return the canonical sampling parameters that the engine was given in a mode: those asked for, unless it recorded
    others.
    """
    return sampling_request(side, mode).effective


def on_cpu(side: RecordedSide, mode: str) -> bool:
    """Whether every engine reports that it computes on a CPU."""
    return {info.resolved.device for info in engine_infos(side, mode)} == {"cpu"}


def tf32_devices(side: RecordedSide, mode: str) -> set[str]:
    """Return the GPUs whose engines may multiply float32 in TF32: all that do not report it as forbidden."""
    engines = [info.resolved for info in engine_infos(side, mode)]
    devices = {resolved.device or "" for resolved in engines if not resolved.forbids_tf32}
    return {device for device in devices if device.startswith("cuda")}


def reported_ends(side: RecordedSide, mode: str) -> set[int] | None:
    """Return the token ids that end a sample in a mode.

    They are those that the engine was given, else those that it resolved together with those asked for. Returns None
    where it reports none, or had to ignore some.
    """
    sampling = sampling_given(side, mode)
    if sampling.end_ids is not None:
        return set(sampling.end_ids)
    by_engine = (info.resolved.end_ids for info in engine_infos(side, mode))
    engine_ends = next((ends for ends in by_engine if ends is not None), None)
    if engine_ends is None or sampling.ignore_eos:
        return None
    return {*engine_ends, *(sampling.stop_token_ids or ())}


def follows_from(request: SamplingRequest) -> dict[str, str]:
    """Return parameter -> the other parameter that undoes it in the engine, although both were passed on as asked.

    The known case: SGLang's ignore_eos leaves no stop token ids.
    """
    requested_stops = request.requested.get("stop_token_ids")
    if not requested_stops or not request.received.ignore_eos or request.received.get("stop_token_ids") != []:
        return {}
    passed_on = [request.arguments.get(name) for name in request.moves.get("stop_token_ids", ())]
    if not any(equal_values(value, requested_stops) for value in passed_on):
        return {}  # the mapping lost it, not ignore_eos
    return {"stop_token_ids": "ignore_eos"}


def altered_sampling(side: RecordedSide, mode: str) -> Iterator[Altered]:
    """Yield every sampling parameter that this side's mapping changed on its way to an engine."""
    for request in engines_sampling(side, mode):
        yield from altered(side, mode, request)


def altered(side: RecordedSide, mode: str, request: SamplingRequest) -> Iterator[Altered]:
    """Yield the changed parameters of one engine, from its sampling request."""
    received, undone = request.received, follows_from(request)
    resolved = next((info.resolved for info in engine_infos(side, mode)), Resolved({}))
    defaults = resolved.default_sampling if resolved.reads_generation_config else {}
    for name, requested in request.requested.items():
        if name in received and not equal_values(requested, received[name]):
            left_to_engine = request.moves.get(name) == ()
            leaked = left_to_engine and name in defaults and equal_values(defaults[name], received[name])
            yield Altered(side.name, name, requested, received[name], undone.get(name, name), leaked)


def sides_given(e: Evidence) -> dict[str, tuple[Any, Any]]:
    """Return sampling parameter -> (baseline's, candidate's) value that the engines were given, where they differ."""
    baseline_given, candidate_given = (sampling_given(side, e.mode) for side in e.sides)
    shared_names = [name for name in baseline_given if name in candidate_given]
    pairs = {name: (baseline_given[name], candidate_given[name]) for name in shared_names}
    return {name: pair for name, pair in pairs.items() if not equal_values(*pair)}
