"""Plants of the engines' own samplers, on the embedded engine: they act in the native stage and nowhere else."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from harness.errors import BadInput
from harness.planted.differences.files import problem
from harness.planted.differences.option import fault_of_a_run
from scenarios.engines.engine_interface import Completion, Request
from scenarios.planted.differences.catalog import FAULTS, named, native
from scenarios.planted.differences.faulty_engine import FaultyEngine
from scenarios.settings import Rollout, Sampling, Scenario


class Echo:
    """An engine whose completion says what it was asked."""

    def generate(self, requests: list[Request], sampling: Sampling, *, seed: int) -> list[Completion]:
        return [
            Completion(r.sample, r.prompt_ids, (r.sample % 1000, int(100 * sampling.temperature)), (0.0, 0.0), "stop")
            for r in requests
        ]


def drawn(plants: dict[str, Any], mode: Any, calls: int = 1) -> list[list[tuple[int, ...]]]:
    scenario = dataclasses.replace(Scenario(), rollout=Rollout(mode=mode))
    engine = FaultyEngine(Echo(), model_path="", scenario=scenario, **plants)  # type: ignore[arg-type]
    requests = [Request(number, (1,)) for number in range(8)]
    found = []
    for _ in range(calls):
        answers = engine.generate(requests, Sampling(), seed=0)
        assert [one.sample for one in answers] == list(range(8))
        found.append([one.output_ids for one in answers])
    return found


@pytest.mark.parametrize("fault", [one for one in native.FAULTS if one.engine], ids=lambda one: one.name)
def test_a_plant_of_the_native_stage_leaves_coupled_sampling_alone(fault: Any) -> None:
    plants = {name: value for name, value in fault.engine.items() if name != "only"}
    assert drawn(plants, "coupled") == drawn({}, "coupled")


def test_what_each_plant_changes() -> None:
    sound = drawn({}, "native")[0]
    assert {row[1] for row in drawn({"native": {"sampling": {"temperature": 0.8}}}, "native")[0]} == {80}
    assert [row[0] for row in drawn({"native": {"clones": 4}}, "native")[0]] == [0] * 4 + [4] * 4
    assert sound[1] != sound[0]


def test_ignored_seeds_are_other_ones_at_every_call() -> None:
    class Seeds(Echo):
        def generate(self, requests: list[Request], sampling: Sampling, *, seed: int) -> list[Completion]:
            return [Completion(r.sample, (), (r.sample,), (0.0,), "stop") for r in requests]

    scenario = dataclasses.replace(Scenario(), rollout=Rollout(mode="native"))
    engine = FaultyEngine(
        Seeds(), model_path="", scenario=scenario, native={"seeds_ignored": True}  # type: ignore[arg-type]
    )  # fmt: skip
    calls = [engine.generate([Request(3, (1,))], Sampling(), seed=0)[0] for _ in range(3)]
    assert [one.sample for one in calls] == [3, 3, 3] and len({one.output_ids for one in calls}) == 3


def test_faults_of_the_native_stage_are_in_the_catalogue() -> None:
    assert all(named(one.name) is one and one.stage == "native" for one in native.FAULTS)
    assert {one.name for one in native.FAULTS} <= {one.name for one in FAULTS}


def test_settings_of_the_native_stage_alone_are_refused_elsewhere() -> None:
    fault = named("native-penalty-blind")
    assert fault.native and problem(fault, Path("mine.py")) == ""
    assert "native" in problem(dataclasses.replace(fault, stage="coupled"), Path("mine.py"))
    assert "nonsense" in problem(dataclasses.replace(fault, native=("sampling.nonsense=1",)), Path("mine.py"))
    with pytest.raises(BadInput, match="native stage alone"):
        fault_of_a_run(fault.name)
