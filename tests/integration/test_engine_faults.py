"""The main job on the real engines, then some planted faults, each with its right verdict, causes and first place.

`harness faults run --suite parity` runs all of them.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

import harness
from harness import config
from harness.parity import judge
from harness.planted.differences.fault_runs import outcomes
from harness.planted.differences.outcome import Outcome
from probes.format import Run
from reports.model import Verdict
from scenarios.planted.differences.catalog import named

pytestmark = [pytest.mark.engines, pytest.mark.timeout(2400)]

NIGHT = os.environ.get("TEST_PROFILE") == "nightly"
# One of each kind of seam, all of one scenario, so that they share a baseline; by day one fault of one engine beside
# Transformers: `make parity`, which continuous integration runs before, is a control of both engines.
BY_DAY = ("stale-tensor",)
BASELINE = "vllm@vllm" if NIGHT else "hf"
PLANTED = ("control", "temperature", "text-prompt", "stale-tensor", "trainer-mask-shifted") if NIGHT else BY_DAY
STALE = "model.layers.0.mlp.down_proj.weight"
# Step, sample and tensor of the first divergence, as far as the fault decides them.
FIRST = {"temperature": (0, None, ""), "text-prompt": (0, 5, ""), "stale-tensor": (3, None, STALE)}


@pytest.fixture(scope="module")
def equivalent(recordings: Path) -> Verdict:
    """A whole run on both engines with another engine seed in the candidate: coupled and guided, then native."""
    return harness.run_parity(
        "vllm", "sglang", candidate_overrides=named("engine-seed").settings, out=recordings / "equivalent"
    )


@pytest.fixture(scope="module")
def planted(recordings: Path) -> dict[str, Outcome]:
    """The control and each fault on engines that stay up, five steps each; the engines named by their environments."""
    faults = [named(name) for name in PLANTED]
    found = outcomes(
        BASELINE, "sglang@sglang", faults, scenario=config.load("ppo-tiny", steps=5), out=recordings / "faults"
    )
    return {outcome.fault.name: outcome for outcome in found}


@pytest.mark.night
def test_two_engines_are_the_same_run_whatever_their_own_seeds(equivalent: Verdict) -> None:
    assert equivalent.verdict == "EQUIVALENT", equivalent.reason
    assert equivalent.coverage["steps"] == 8 and equivalent.coverage["flips_beyond_margin"] == 0
    assert equivalent.coverage["compared_tokens"] == equivalent.coverage["tokens"] > 2000
    assert any("sampler" in item for item in equivalent.coverage["replaced"])


@pytest.mark.night
def test_every_check_of_a_whole_run_was_tested(equivalent: Verdict) -> None:
    assert equivalent.parity is not None
    untested = [check.name for check in equivalent.parity.checks if check.state == "not tested"]
    # Number 11 tells slow steps; on a busy machine there are some.
    confirmed = [check.name for check in equivalent.parity.checks if check.state == "confirmed" and check.number != 11]
    assert (untested, confirmed) == (["memory-growth"], [])  # which needs 16 steps


@pytest.mark.night
def test_learners_stay_bit_identical_while_their_weights_move(equivalent: Verdict) -> None:
    runs = [Run(equivalent.paths["run"] + f"/{side}") for side in ("baseline", "candidate")]
    digests = [[event["actor"] for event in run.events(kind="learner")] for run in runs]
    assert digests[0] == digests[1] and len(set(digests[0])) == 8


@pytest.mark.night
def test_nothing_of_ours_is_loaded_in_the_native_stage(equivalent: Verdict) -> None:
    for side in ("baseline", "candidate"):
        infos = Run(equivalent.paths["run"] + f"/{side}").events(kind="engine_info")
        last = max(infos, key=lambda event: event["t_ns"])
        assert not {"sampler", "weight loader", "output log-probabilities"} & set(last["replaced"])


@pytest.mark.night
def test_the_weights_arrived_and_are_what_the_engine_computes_with(equivalent: Verdict) -> None:
    for side in ("baseline", "candidate"):
        syncs = list(Run(equivalent.paths["run"] + f"/{side}").events(kind="sync"))
        assert [event["version"] for event in syncs] == list(range(9))
        assert all(event["ok"] and not event["mismatched"] and not event["unreported"] for event in syncs)


@pytest.mark.parametrize("name", PLANTED)
def test_each_fault_gets_its_verdict_and_its_cause(planted: dict[str, Outcome], name: str) -> None:
    outcome = planted[name]
    assert outcome.as_expected, (outcome.error, outcome.verdict)
    assert outcome.right, (outcome.missing, outcome.wrong)


@pytest.mark.parametrize("name", [name for name in PLANTED if name in FIRST])
def test_first_places(planted: dict[str, Outcome], name: str) -> None:
    verdict = planted[name].verdict
    parity = verdict.parity if verdict is not None else None
    assert parity is not None and parity.first_divergence is not None
    step, sample, tensor = FIRST[name]
    assert parity.first_divergence.step == step and tensor in str(parity.first_divergence)
    assert sample is None or parity.first_divergence.sample == sample


@pytest.mark.night
def test_a_recording_torn_in_the_middle_is_inconclusive(
    planted: dict[str, Outcome], recordings: Path, tmp_path: Path
) -> None:
    torn = tmp_path / "torn"
    shutil.copytree(recordings / "faults" / "control" / "candidate", torn)
    tokens = next((torn / "tokens").glob("rollout-*.bin"))
    tokens.write_bytes(tokens.read_bytes()[: tokens.stat().st_size // 2])
    verdict = judge(recordings / "faults" / "baseline-vllm@vllm-sglang@sglang", torn)
    assert verdict.verdict == "INCONCLUSIVE" and verdict.exit_code == 3
    assert tokens.name in verdict.account or any(tokens.name in item for item in verdict.missing)
