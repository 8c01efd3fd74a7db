"""Computes what an engine would be given, before it starts: `python -m scenarios.engines.ahead`, in its interpreter.

It imports no engine and takes a fraction of a second. The request is JSON on standard input; the answer is the last
line that begins with `ANSWER`.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from probes.plugins import PluginError
from scenarios.engines import mapping, native_arguments, registry
from scenarios.engines.canonical_request import engine_asked
from scenarios.engines.engine_interface import ParameterRefused
from scenarios.engines.mapping import ParameterMap
from scenarios.settings import Scenario

ANSWER = "rlhf-harness-ahead:"


@dataclass(frozen=True)
class Ahead:
    """Names of the native arguments that a start and a request would have.

    `refused`: why there are none. `brought`: whether the interpreter has the engine's plug-in at all.
    """

    engine: tuple[str, ...] = ()
    sampling: tuple[str, ...] = ()
    refused: str = ""
    brought: bool = True

    @staticmethod
    def of(data: Mapping[str, Any]) -> Ahead:
        return Ahead(tuple(data["engine"]), tuple(data["sampling"]), str(data["refused"]), bool(data["brought"]))


def ahead(engine: str, scenario: Scenario, user_mapping: Mapping[str, Any], device: str, longest_context: int) -> Ahead:
    """Return what the mapping makes of the scenario, in the same way as the engine's own start and its requests."""
    spec = registry.find(engine)
    if spec is None:
        return Ahead(refused=registry.refusal(engine), brought=False)
    try:
        chosen = ParameterMap.of(user_mapping)
        requested = engine_asked(scenario.model.path, scenario.model.dtype, scenario.engine, device=device)
        arguments: dict[str, Any] = {}
        if spec.maps is not None:
            maps = spec.maps
            arguments, _ = mapping.map_engine(
                chosen, engine, requested, lambda wanted: maps(wanted, longest_context), spec.machine
            )
        sampling = scenario.sampling
        ours = native_arguments.sampling_arguments(engine, sampling)
        native = chosen.apply(engine, "sampling", dataclasses.asdict(sampling), ours)
        mapped = mapping.Mapped(native, sampling, frozenset())
        mapping.sampling_event(chosen, engine, sampling, mapped, scenario.rollout.mode)
    except (ParameterRefused, PluginError) as error:
        return Ahead(refused=str(error))
    return Ahead(tuple(arguments), tuple(native))


def main() -> None:
    request = json.load(sys.stdin)
    answer = ahead(
        request["engine"], Scenario.from_json(request["scenario"]), request["mapping"], request["device"],
        request["longest_context"],
    )  # fmt: skip
    print("\n" + ANSWER + json.dumps(dataclasses.asdict(answer)), flush=True)


if __name__ == "__main__":
    main()
