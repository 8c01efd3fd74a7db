"""What each side asked for, was given and resolved, as its recording tells it; another framework's recordings too."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from harness.parity.facts.evidence import Evidence, Side
from probes.format import mapping, whole
from scenarios.engines import given


@dataclass(frozen=True)
class Altered:
    """One canonical sampling parameter that an engine was not given as it was asked. `by`: the parameter that undoes
    it in the engine, itself where none does. `leaked`: its value is that of generation_config.json."""

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
    """`engine_info` events of the engines that sampled in this mode: the native stage has an engine of its own."""
    modes = {event["file"]: event.get("mode") for event in side.recording.all("sampling")}
    events = side.recording.all("engine_info")
    return [event for event in events if modes.get(event["file"]) == mode] or events


def engine_given(info: dict[str, Any]) -> dict[str, Any]:
    """Canonical engine parameters that the engine was given; {} of one whose arguments are not known here."""
    canonical, native = mapping(info.get("given")), mapping(info.get("asked"))
    table = given.table("engine", str(info.get("engine")))
    if canonical or not native:
        return canonical
    return {name: argument.value_in(native) for name, argument in table.items() if argument.name in native}


def engines_sampling(side: Side, mode: str) -> list[dict[str, Any]]:
    """`sampling` events of a mode: one of each engine of the side."""
    return [event for event in side.recording.all("sampling") if str(event.get("mode")) == mode]


def sampling_events(side: Side) -> dict[str, dict[str, Any]]:
    """Mode -> `sampling` event, of the last engine of several."""
    return {str(event.get("mode")): event for event in side.recording.all("sampling")}


def sampling_given(side: Side, mode: str) -> dict[str, Any]:
    """Canonical sampling parameters that the engine was given in a mode: what was asked, where nothing else is said."""
    event = mapping(sampling_events(side).get(mode))
    return {**mapping(event.get("canonical")), **mapping(event.get("given"))}


def on_cpu(side: Side, mode: str) -> bool:
    """Whether every engine says that it computes on a CPU."""
    devices = {str(mapping(info.get("resolved")).get("device")) for info in engine_infos(side, mode)}
    return devices == {"cpu"}


def tf32_devices(side: Side, mode: str) -> set[str]:
    """The GPUs of engines that may multiply float32 in TF32 there: of all that do not say that it was forbidden."""
    infos = [mapping(info.get("resolved")) for info in engine_infos(side, mode)]
    devices = {str(resolved.get("device")) for resolved in infos if resolved.get("tf32") is not False}
    return {device for device in devices if device.startswith("cuda")}


def told_ends(side: Side, mode: str) -> set[int] | None:
    """Ids that end a sample in a mode, as the engine was given them, else as it resolved them beside those that were
    asked for; None where it does not say, or was to ignore some of them."""
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
    """Equal as values: JSON knows no tuples."""
    return (list(first) if isinstance(first, tuple) else first) == (
        list(second) if isinstance(second, tuple) else second
    )


def follows_from(event: dict[str, Any]) -> dict[str, str]:
    """Parameters of a `sampling` event that were passed on as they were asked, and that another one undoes in the
    engine, by that one: SGLang's ignore_eos leaves no token that stops."""
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
    """Every sampling parameter that the mapping of this side changed on its way to an engine."""
    for event in engines_sampling(side, mode):
        yield from altered(side, mode, event)


def altered(side: Side, mode: str, event: dict[str, Any]) -> Iterator[Altered]:
    """The same of one engine, by its `sampling` event."""
    engine_values, follows, undone = mapping(event.get("given")), mapping(event.get("moves")), follows_from(event)
    infos = engine_infos(side, mode)
    leaked = mapping(mapping(infos[0].get("resolved")).get("default_sampling")) if infos else {}
    reads = bool(infos) and bool(mapping(infos[0].get("resolved")).get("generation_config"))
    for name, requested in mapping(event.get("canonical")).items():
        if name in engine_values and not same(requested, engine_values[name]):
            fills_in = reads and follows.get(name) == [] and name in leaked and same(leaked[name], engine_values[name])
            yield Altered(side.name, name, requested, engine_values[name], undone.get(name, name), fills_in)


def sides_given(e: Evidence) -> dict[str, tuple[Any, Any]]:
    """Sampling parameter -> (baseline's, candidate's) that the engines were given, where they differ."""
    baseline_given, candidate_given = (sampling_given(side, e.mode) for side in e.sides)
    return {
        name: (baseline_given[name], candidate_given[name])
        for name in baseline_given
        if name in candidate_given and not same(baseline_given[name], candidate_given[name])
    }
