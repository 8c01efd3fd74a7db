"""A leak in a real run of 20 steps is found, in the process that has it and in no other one."""

from __future__ import annotations

import pytest

from harness import config
from harness.planted.differences.fault_runs import outcomes
from harness.planted.differences.outcome import Outcome
from scenarios.planted.differences.catalog import named

LEAKING = {
    "leak-of-the-actor": ["actor, rank 0"],
    "leak-of-an-engine": ["rollout, rank 0"],
    "memory-that-fills-up": [],
}


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    faults, out = [named(name) for name in LEAKING], tmp_path_factory.mktemp("leaks")
    return {one.fault.name: one for one in outcomes("hf", "hf", faults, scenario=config.load("ppo-tiny"), out=out)}


@pytest.mark.night
@pytest.mark.parametrize("name", LEAKING)
def test_memory_that_grows_is_named_with_its_process(planted: dict[str, Outcome], name: str) -> None:
    one = planted[name]
    assert one.right and one.verdict is not None, one.to_dict()
    grows = [found for found in one.verdict.findings if found.name == "memory growth"]
    assert [(found.where, found.details["process"]) for found in grows] == [
        ("candidate", process) for process in LEAKING[name]
    ]
