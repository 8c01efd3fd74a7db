"""A whole run in bfloat16, learner and engines: the same run is the same, planted faults are found or not tested."""

from __future__ import annotations

from pathlib import Path

import pytest

import harness
from harness import config
from harness.planted.differences.fault_runs import outcomes
from harness.planted.differences.outcome import Outcome
from probes.format import LIFTED, SIDES, Run
from reports.model import Check, Verdict
from scenarios.planted.differences.catalog import named

pytestmark = pytest.mark.timeout(2400)

PLANTED = ("control", "one-tiny-update-behind", "stale-tensor", "temperature-unsaid")  # all of them: `make faults`


def check(verdict: Verdict, name: str) -> Check:
    assert verdict.parity is not None
    return next(one for one in verdict.parity.checks if one.name == name)


def is_the_same(verdict: Verdict) -> None:
    assert verdict.verdict == "EQUIVALENT", verdict.reason
    assert "cap, not floor" in verdict.account and "within the floor" not in verdict.account
    told = check(verdict, "systematic")
    assert told.state == "ruled out" and told.details["smallest"]["logprob"]["bias of the run"] < 0.005
    assert check(verdict, "weights-in-use").state == "ruled out"


@pytest.mark.night
def test_the_embedded_engine_is_itself_in_bfloat16(tmp_path: Path) -> None:
    is_the_same(harness.run_parity("hf", "hf", scenario="ppo-tiny-bf16", native=False, out=tmp_path / "it"))
    for side in SIDES:  # each with its index, and that of its lifted stage
        for run in (Run(tmp_path / "it" / side), Run(tmp_path / "it" / side / LIFTED)):
            assert run.indexed and run.complete


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    faults, scenario = [named(name) for name in PLANTED], config.load("ppo-tiny-bf16", steps=5)
    found = outcomes("hf", "hf", faults, scenario=scenario, out=tmp_path_factory.mktemp("half"))
    return {one.fault.name: one for one in found}


@pytest.mark.night
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_in_bfloat16(planted: dict[str, Outcome], name: str) -> None:
    assert planted[name].right, planted[name].to_dict()


@pytest.mark.night
@pytest.mark.engines
def test_vllm_and_sglang_are_the_same_run_in_bfloat16(tmp_path: Path) -> None:
    is_the_same(harness.run_parity("vllm", "sglang", scenario="ppo-tiny-bf16", out=tmp_path / "at 10:30"))
