"""Computes what an engine would be given, before it starts: `python -m scenarios.engines.ahead`, in its interpreter.

It imports no engine and takes a fraction of a second. The request is JSON on standard input; the answer is the last
line that begins with `ANSWER`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from probes import limits
from probes.plugins import PluginError
from scenarios.engines import mapping, native_arguments, registry
from scenarios.engines.canonical_request import engine_asked
from scenarios.engines.engine_interface import ParameterRefused
from scenarios.engines.mapping import ParameterMap
from scenarios.settings import Scenario

ANSWER = "rlhf-harness-ahead:"
BEGUN = "rlhf-harness-ahead begins"  # what is printed before a user's file is executed


@dataclass(frozen=True)
class Ahead:
    """Names of the native arguments that a start and a request would have. `words`: those of a start that are strings.

    `refused`: a sentence about each thing that the engine cannot be given; then it lacks names. `brought`: whether the
    interpreter has the engine's plug-in at all.
    """

    engine: tuple[str, ...] = ()
    sampling: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    brought: bool = True
    words: Mapping[str, str] = field(default_factory=dict)

    @staticmethod
    def of(data: Mapping[str, Any]) -> Ahead:
        return Ahead(
            engine=tuple(data["engine"]),
            sampling=tuple(data["sampling"]),
            refused=tuple(data["refused"]),
            brought=bool(data["brought"]),
            words=dict(data["words"]),
        )


def ahead(engine: str, scenario: Scenario, user_mapping: Mapping[str, Any], device: str, longest_context: int) -> Ahead:
    """Return what the mapping makes of the scenario, in the same way as the engine's own start and its requests."""
    spec = registry.find(engine)
    if spec is None:
        return Ahead(refused=(registry.refusal(engine),), brought=False)
    refused: dict[str, None] = {}
    arguments: dict[str, Any] = {}
    native: dict[str, Any] = {}
    chosen = ParameterMap.of(user_mapping)
    with _kept(refused):
        requested = engine_asked(scenario.model.path, scenario.model.dtype, scenario.engine, device=device)
        if spec.maps is not None:
            maps = spec.maps
            arguments, _ = mapping.map_engine(
                chosen, engine, requested, lambda wanted: maps(wanted, longest_context), spec.machine
            )
        refused |= dict.fromkeys(_rejected(chosen, engine, "engine", arguments))
    with _kept(refused):
        sampling = scenario.sampling
        ours = native_arguments.sampling_arguments(engine, sampling)
        native = chosen.apply(engine, "sampling", dataclasses.asdict(sampling), ours)
        mapped = mapping.Mapped(native, sampling, frozenset())
        mapping.sampling_event(chosen, engine, sampling, mapped, scenario.rollout.mode)
        refused |= dict.fromkeys(_rejected(chosen, engine, "sampling", native))
    return Ahead(tuple(arguments), tuple(native), tuple(refused), words=words(arguments))


def words(arguments: Mapping[str, Any]) -> dict[str, str]:
    """Return the arguments that are strings."""
    return {name: value for name, value in arguments.items() if isinstance(value, str)}


@contextlib.contextmanager
def _kept(refused: dict[str, None]) -> Iterator[None]:
    """Take the sentence of a refusal into `refused`, and go on behind the block."""
    try:
        yield
    except (ParameterRefused, PluginError) as error:
        refused[str(error)] = None


def _rejected(chosen: ParameterMap, engine: str, part: str, given: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence about each value of a user's file that the engine does not accept, or no recording can hold."""
    arguments = {argument.name: argument for argument in native_arguments.table(part, engine).values()}
    for name, value in given.items() if chosen.file else ():
        why = arguments[name].rejects(value) if name in arguments else ""
        if not why and isinstance(value, int) and abs(value) > limits.WHOLE:
            why = limits.BEYOND_WHOLE
        if why:
            yield f"the mapping {chosen.file}: {engine}_{part} gives {name}={value!r}: {why}"


def main() -> None:
    request = json.load(sys.stdin)
    print(BEGUN, flush=True)
    try:
        answer = ahead(
            request["engine"], Scenario.from_json(request["scenario"]), request["mapping"], request["device"],
            request["longest_context"],
        )  # fmt: skip
    except Exception:  # a user's code raises ParameterRefused alone: a defect of ours must not be called a fault of it
        traceback.print_exc()
        answer = Ahead()
    print("\n" + ANSWER + json.dumps(dataclasses.asdict(answer)), flush=True)


if __name__ == "__main__":
    main()
