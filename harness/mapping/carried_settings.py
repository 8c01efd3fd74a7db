"""The settings of one engine that a mapping to another has to carry, and the values with which the mapping is tried.

Every fact comes from `scenarios.engines`: the canonical table, and the names and meanings of each engine.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from scenarios.engines.canonical import CARRIED, ENGINE, SAMPLING
from scenarios.engines.native import Native, same
from scenarios.engines.parameter import Parameter
from scenarios.engines.spec import EngineSpec
from scenarios.settings import Engine, Sampling

CANONICAL = "canonical"  # the source in a mapping for `harness parity --mapping`
# Values as in a real run, so that a mapping's own limits do not apply.
MODEL = next(parameter.default for parameter in CARRIED if parameter.name == "model")
_TYPICAL = {"dtype": "bfloat16", "max_model_len": 32768, "max_tokens": 1024, "seed": 1, "memory_fraction": 0.8,
            "generation_config": False, "graph_padding": True}  # fmt: skip


# Values within a range, with digits that rounding, a threshold, a limit or a modulus changes.
_FRACTIONS = (0.013, 0.137, 0.613, 0.937, 1.37, -0.137, -1.37)
_COUNTS = (3, 4, 8, 17, 777, 5003, 16411, 131101, 1_234_567_891)
ORDINARY = "an ordinary value of it"
CHOSEN_BY_ENGINE = "auto"  # each engine chooses in its own way: what a mapping makes of it is no mistake by itself
REPEATS = 4  # chosen: a switch that is drawn at random is the same in all five with a probability of 1/16
_SCALE = 64  # a count without an upper end is tried up to this multiple of its typical value


@dataclass(frozen=True)
class Edge:
    """A native value of the source engine at which mappings clamp, round or replace a setting. `why`: what it is."""

    native: Any
    why: str


@dataclass(frozen=True)
class Words:
    """The words that an argument may be, by argument, where the source and the target engine list them.

    `canonical`: the source is a scenario, which has one name for each data type.
    """

    source: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    target: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    canonical: bool = False

    def edges(self, argument: Native, image: Native | None, tried: tuple[Any, ...]) -> Iterator[Edge]:
        """Yield each word of the source that the target takes as well, without what is tried anyway and what leaves
        the choice to the engine. A word of the source alone no mapping can carry."""
        if image is None or not all(isinstance(value, str) for value in tried):
            return
        taken = {image.read(word, {}) for word in self.target.get(image.name, ())}
        known = {argument.write(value) for value in tried}
        for word in self.source.get(argument.name, ()):
            another_name = self.canonical and image.read(word, {}) != word
            if word not in known and word != CHOSEN_BY_ENGINE and argument.read(word, {}) in taken and not another_name:
                yield Edge(word, f"{argument.name} takes this word")


@dataclass(frozen=True)
class Setting:
    """One setting.

    `source`, `target`: its native argument in each engine; `target` is None if that engine has none. `first`, `second`:
    canonical values with which the mapping is tried. `edges`: the ends of its range, its special values and ordinary
    values in between, with which it is tried too.
    """

    parameter: Parameter
    source: Native
    target: Native | None
    first: Any
    second: Any
    edges: tuple[Edge, ...] = ()

    @property
    def part(self) -> str:
        return self.parameter.part

    def requested(self, value: Any) -> Any:
        """The canonical value as the source engine will read it back."""
        return self.source.read(self.source.write(value), {})


def settings(source: EngineSpec | None, target: EngineSpec, words: Words = Words()) -> tuple[Setting, ...]:
    """What a mapping from `source` (None: from canonical parameters) to `target` has to carry.

    Left out are settings that only a CPU needs, and settings that change no result and that `target` does not have.
    Also left out is the model's generation_config.json if `target` reads it only at its OpenAI endpoint, whatever a
    mapping gives. `words`: what the installed engines list for settings that are words.
    """
    made = []
    for parameter in (*ENGINE, *SAMPLING, *CARRIED):
        argument, image = _argument(parameter, source), parameter.argument(target.name)
        endpoint = parameter.name == "generation_config" and target.defaults_at_endpoint_only
        needless = image is None and not parameter.results
        if argument is None or endpoint or needless or parameter.name == "kv_cache_tokens":
            continue
        first = _first(parameter)
        second = parameter.variant(first)
        edges = (*_edges(parameter, argument, (first, second)), *words.edges(argument, image, (first, second)))
        made.append(Setting(parameter, argument, image, first, second, edges))
    return tuple(made)


def owners(target: EngineSpec) -> dict[tuple[str, str], Parameter]:
    """(part, native argument of the target) -> the parameter to which it belongs."""
    pairs = ((parameter, parameter.argument(target.name)) for parameter in (*ENGINE, *SAMPLING, *CARRIED))
    return {(parameter.part, argument.name): parameter for parameter, argument in pairs if argument is not None}


def asked_for(of_part: tuple[Setting, ...]) -> list[dict[str, Any]]:
    """The requests for a part, as native arguments of the source engine.

    First every setting has its first value. Then one setting after another has its second value. Then one after another
    is left out. Then come the edges of every setting, in order, and last the first request `REPEATS` times.
    """
    base = {item.source.name: item.source.write(item.first) for item in of_part}
    varied = [{**base, item.source.name: item.source.write(item.second)} for item in of_part]
    without = [{name: value for name, value in base.items() if name != item.source.name} for item in of_part]
    edges = [{**base, item.source.name: edge.native} for item in of_part for edge in item.edges]
    return [base, *varied, *without, *edges, *[base] * REPEATS]


@dataclass(frozen=True)
class Replies:
    """The answers to the requests of `asked_for`, by what was asked.

    `base`: with every setting at its first value. `varied`, `without`: (setting, answer) with this setting at its
    second value, and without it. `edges`: (setting, edge, answer). `repeated`: the answers to what `base` answers.
    """

    base: dict[str, Any]
    varied: list[tuple[Setting, dict[str, Any]]]
    without: list[tuple[Setting, dict[str, Any]]]
    edges: list[tuple[Setting, Edge, dict[str, Any]]]
    repeated: list[dict[str, Any]]

    @staticmethod
    def of(of_part: tuple[Setting, ...], answers: list[dict[str, Any]]) -> Replies:
        varied_end = 1 + len(of_part)
        without_end = varied_end + len(of_part)
        tried = [(item, edge) for item in of_part for edge in item.edges]
        at_edges = zip(tried, answers[without_end:-REPEATS], strict=True)
        return Replies(
            base=answers[0],
            varied=list(zip(of_part, answers[1:varied_end], strict=True)),
            without=list(zip(of_part, answers[varied_end:without_end], strict=True)),
            edges=[(item, edge, answer) for (item, edge), answer in at_edges],
            repeated=answers[-REPEATS:],
        )

    def varying(self) -> dict[str, list[Any]]:
        """Argument -> its values, where they differ though the same was asked for."""
        natives = [answer.get("native", {}) for answer in (self.base, *self.repeated)]
        values = {name: [native.get(name) for native in natives] for name in {*itertools.chain(*natives)}}
        return {name: its for name, its in sorted(values.items()) if not all(same(value, its[0]) for value in its)}


def harness_gives(of_part: tuple[Setting, ...], requested: dict[str, Any]) -> dict[str, Any]:
    """What the harness's own mapping gives for canonical parameters."""
    return {item.target.name: item.target.write(requested[item.source.name])
            for item in of_part if item.target is not None and item.source.name in requested}  # fmt: skip


def _argument(parameter: Parameter, source: EngineSpec | None) -> Native | None:
    if source is not None:
        return parameter.argument(source.name)
    is_requested = parameter.name == "model" or (parameter.requested and not parameter.carried)
    return Native(parameter.name, parameter.default) if is_requested else None


def _edges(parameter: Parameter, argument: Native, tried: tuple[Any, ...]) -> tuple[Edge, ...]:
    """The ends of a setting's range (`scenarios.engines.canonical`), the value that switches it off, the values to
    which the engine gives a meaning of their own (`Native.special`), and ordinary values within the range, without
    those that are tried anyway. Of a setting whose equal values have another effect in each engine, ordinary values
    alone: they show what else follows it."""
    values: dict[Any, str] = {}
    if parameter.comparable:
        named = {
            "the least that it can be": parameter.low, "the largest that it can be": parameter.high,
            "off": parameter.off,
        }  # fmt: skip
        values = {argument.write(value): why for why, value in named.items() if value is not None}
        values.update(argument.special)
    for value in _ordinary(parameter, tried):
        values.setdefault(argument.write(value), ORDINARY)
    known = [argument.write(value) for value in tried]
    return tuple(Edge(native, why) for native, why in values.items() if native not in known)


def _ordinary(parameter: Parameter, tried: tuple[Any, ...]) -> tuple[float, ...]:
    """Values within the range of a setting that is a number."""
    first = tried[0]
    if isinstance(first, bool) or not isinstance(first, int | float):
        return ()
    low = 0.0 if parameter.low is None else parameter.low
    if isinstance(first, int):
        high = _SCALE * max(first, 1) if parameter.high is None else parameter.high
        return tuple(value for value in _COUNTS if low <= value <= high)
    high = math.inf if parameter.high is None else parameter.high
    return tuple(value for value in _FRACTIONS if low <= value <= high)


def _first(parameter: Parameter) -> Any:
    if parameter.name in _TYPICAL:
        return _TYPICAL[parameter.name]
    if parameter.carried:
        return parameter.default
    defaults: Any = Engine() if parameter.part == "engine" else Sampling()
    return dataclasses.asdict(defaults).get(parameter.name, parameter.default)
