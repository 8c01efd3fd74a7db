"""What each side asked for, was given and resolved, from its recording. Recordings of frameworks work too."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from harness.parity.facts.evidence import Evidence, Side
from probes.format import mapping, whole
from scenarios.engines import given


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


def engine_infos(side: Side, mode: str) -> list[dict[str, Any]]:
    """Return the `engine_info` events of the engines that sampled in this mode. The native stage has an engine of its
    own.
    """
    modes = {event["file"]: event.get("mode") for event in side.recording.all("sampling")}
    events = side.recording.all("engine_info")
    return [event for event in events if modes.get(event["file"]) == mode] or events


def engine_given(info: dict[str, Any]) -> dict[str, Any]:
    """Return the canonical engine parameters that the engine was given; {} where its arguments are not known here."""
    canonical, native = mapping(info.get("given")), mapping(info.get("asked"))
    table = given.table("engine", str(info.get("engine")))
    if canonical or not native:
        return canonical
    return {name: argument.value_in(native) for name, argument in table.items() if argument.name in native}


def engines_sampling(side: Side, mode: str) -> list[dict[str, Any]]:
    """Return the `sampling` events of a mode, one for each engine of the side."""
    return [event for event in side.recording.all("sampling") if str(event.get("mode")) == mode]


def sampling_events(side: Side) -> dict[str, dict[str, Any]]:
    """Return mode -> `sampling` event, that of the last engine where there are several."""
    return {str(event.get("mode")): event for event in side.recording.all("sampling")}


def sampling_given(side: Side, mode: str) -> dict[str, Any]:
    """Return the canonical sampling parameters that the engine was given in a mode: those asked for, unless it recorded
    others.
    """
    event = mapping(sampling_events(side).get(mode))
    return {**mapping(event.get("canonical")), **mapping(event.get("given"))}


def on_cpu(side: Side, mode: str) -> bool:
    """Whether every engine reports that it computes on a CPU."""
    devices = {str(mapping(info.get("resolved")).get("device")) for info in engine_infos(side, mode)}
    return devices == {"cpu"}


def tf32_devices(side: Side, mode: str) -> set[str]:
    """Return the GPUs whose engines may multiply float32 in TF32: all that do not report it as forbidden."""
    infos = [mapping(info.get("resolved")) for info in engine_infos(side, mode)]
    devices = {str(resolved.get("device")) for resolved in infos if resolved.get("tf32") is not False}
    return {device for device in devices if device.startswith("cuda")}


def told_ends(side: Side, mode: str) -> set[int] | None:
    """Return the token ids that end a sample in a mode.

    They are those that the engine was given, else those that it resolved together with those asked for. Returns None
    where it reports none, or had to ignore some.
    """
    sampling = sampling_given(side, mode)
    ids = sampling.get("end_ids")
    if not isinstance(ids, list):
        resolved_ends = [mapping(info.get("resolved")).get("end_ids") for info in engine_infos(side, mode)]
        engine_ends = next((ends for ends in resolved_ends if isinstance(ends, list)), None)
        if engine_ends is None or sampling.get("ignore_eos"):
            return None
        requested_ends = sampling.get("stop_token_ids")
        ids = [*engine_ends, *(requested_ends if isinstance(requested_ends, list) else ())]
    return {whole(end_id, -1) for end_id in ids}


def same(first: Any, second: Any) -> bool:
    """Whether two values are equal, tuples and lists alike, since JSON has no tuples."""
    return (list(first) if isinstance(first, tuple) else first) == (
        list(second) if isinstance(second, tuple) else second
    )


def follows_from(event: dict[str, Any]) -> dict[str, str]:
    """Return parameter -> the other parameter that undoes it in the engine, although both were passed on as asked.

    The known case: SGLang's ignore_eos leaves no stop token ids.
    """
    engine_values, native = mapping(event.get("given")), mapping(event.get("native"))
    requested_stops = mapping(event.get("canonical")).get("stop_token_ids")
    names = mapping(event.get("moves")).get("stop_token_ids")
    if not (
        engine_values.get("ignore_eos")
        and requested_stops
        and engine_values.get("stop_token_ids") == []
        and isinstance(names, list)
    ):
        return {}
    return {"stop_token_ids": "ignore_eos"} if any(same(native.get(name), requested_stops) for name in names) else {}


def altered_sampling(side: Side, mode: str) -> Iterator[Altered]:
    """Yield every sampling parameter that this side's mapping changed on its way to an engine."""
    for event in engines_sampling(side, mode):
        yield from altered(side, mode, event)


def altered(side: Side, mode: str, event: dict[str, Any]) -> Iterator[Altered]:
    """Yield the changed parameters of one engine, from its `sampling` event."""
    engine_values, follows, undone = mapping(event.get("given")), mapping(event.get("moves")), follows_from(event)
    infos = engine_infos(side, mode)
    leaked = mapping(mapping(infos[0].get("resolved")).get("default_sampling")) if infos else {}
    reads = bool(infos) and bool(mapping(infos[0].get("resolved")).get("generation_config"))
    for name, requested in mapping(event.get("canonical")).items():
        if name in engine_values and not same(requested, engine_values[name]):
            fills_in = reads and follows.get(name) == [] and name in leaked and same(leaked[name], engine_values[name])
            yield Altered(side.name, name, requested, engine_values[name], undone.get(name, name), fills_in)


def sides_given(e: Evidence) -> dict[str, tuple[Any, Any]]:
    """Return sampling parameter -> (baseline's, candidate's) value that the engines were given, where they differ."""
    baseline_given, candidate_given = (sampling_given(side, e.mode) for side in e.sides)
    return {
        name: (baseline_given[name], candidate_given[name])
        for name in baseline_given
        if name in candidate_given and not same(baseline_given[name], candidate_given[name])
    }
