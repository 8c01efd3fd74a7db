"""OpenRLHF's own PPO job, recorded: minutes, so not among the tests of `make test`."""

from __future__ import annotations

from pathlib import Path

import pytest
from framework_jobs import LIMIT_S, assert_hooks, assert_tokens_agree, openrlhf, openrlhf_coupled, rows

from harness.parity.runs.run import diff
from probes.format import Run

pytestmark = pytest.mark.timeout(4 * LIMIT_S)
STEPS, PROMPTS, SEED = 2, 8, 7


@pytest.fixture(scope="module")
def recording(recordings: Path) -> Run:
    return openrlhf(recordings)


def test_every_hook_that_a_job_calls_fires(recording: Run) -> None:
    assert_hooks(recording)


def test_the_job_is_known_from_its_recording(recording: Run) -> None:
    manifest = recording.manifest
    assert (manifest["framework"], manifest["framework_version"], manifest["exit_code"]) == ("openrlhf", "0.11.2", 0)
    assert manifest["seeds"]["engine"] == 42
    [engine] = recording.events("engine_info")
    assert engine["resolved"]["dtype"] == "bfloat16" and engine["resolved"]["seed"] == 42
    assert any(line.startswith("logprob: OpenRLHF asks vLLM") for line in manifest["missing"])
    assert "data" not in manifest["seeds"] and any(line.startswith("data seed: ") for line in manifest["missing"])


def test_what_was_drawn_is_what_was_trained_on(recording: Run) -> None:
    assert_tokens_agree(recording, STEPS, PROMPTS)


def test_samples_are_numbered_by_their_prompts_and_not_by_their_arrival(recording: Run) -> None:
    for frame in recording.frames("rollout"):
        assert sorted(frame.fields["arrival"]) == list(range(PROMPTS))
    assert all(sorted(step) == list(range(PROMPTS)) for step in rows(recording, "rollout").values())


def test_experience_has_values_and_returns(recording: Run) -> None:
    for step in rows(recording, "experience").values():
        for row in step.values():
            assert len(row["actor_logprob"]) == len(row["value"]) == len(row["return"]) == len(row["tokens"])


def test_each_step_syncs_and_says_what_it_measured(recording: Run) -> None:
    assert [event["version"] for event in recording.events("sync")] == [1, 2]
    assert [event["step"] for event in recording.events("step")] == [0, 1]
    versions = [(event["source"], event["version"]) for event in recording.events("weights")]
    assert versions == [("learner", 0), ("learner", 1), ("learner", 2), ("received", 1), ("received", 2)]


def test_every_role_records_its_forward_passes(recording: Run) -> None:
    phases = {event["phase"] for event in recording.events("shapes")}
    assert phases >= {"actor_forward", "critic_forward", "reference_forward", "reward_forward", "actor_minibatch",
                      "critic_minibatch", "experience"}  # fmt: skip


def test_two_versions_of_vllm_meet_the_same_prompts_with_the_same_draws(recordings: Path) -> None:
    one, two = (openrlhf_coupled(recordings, stack, SEED) for stack in ("openrlhf-before", "openrlhf"))
    versions = []
    for run in (one, two):
        assert_hooks(run)
        assert_tokens_agree(run, STEPS, PROMPTS)
        assert run.manifest["seeds"]["data"] == SEED
        assert {frame.fields["mode"] for frame in run.frames("rollout")} == {"coupled"}
        versions += [event["version"] for event in run.events("engine_info")]
    assert len(set(versions)) == 2
    assert [event["prompts"] for event in one.events("data")] == [event["prompts"] for event in two.events("data")]
    orders = [[frame.fields["order"] for frame in run.frames("experience")] for run in (one, two)]
    assert orders[0] == orders[1] == [list(range(PROMPTS))] * STEPS
    verdict = diff(recordings / "openrlhf-before-coupled", recordings / "openrlhf-coupled")
    assert verdict.confounders == [] and verdict.causes == []
    assert verdict.verdict == "INCONCLUSIVE" and "the floor was not measured" in verdict.account
    states = {check.name: check.state for check in verdict.parity.checks} if verdict.parity else {}
    for name in ("tokens", "lengths", "finish-reasons", "logprobs", "experience", "rewards", "learner", "weight-sync"):
        assert states[name] == "ruled out", (name, verdict.reason)


def again(recordings: Path) -> Path:
    """A second run of the older version's job, which is the floor of the gate."""
    openrlhf_coupled(recordings, "openrlhf-before", SEED, run="again")
    return recordings / "openrlhf-before-coupled-again"


def test_with_a_second_run_of_the_older_one_the_upgrade_is_equivalent(recordings: Path) -> None:
    for stack in ("openrlhf-before", "openrlhf"):
        openrlhf_coupled(recordings, stack, SEED)
    pair = recordings / "openrlhf-before-coupled", recordings / "openrlhf-coupled"
    verdict = diff(*pair, again=again(recordings))
    assert verdict.verdict == "EQUIVALENT", verdict.reason
    assert verdict.coverage["repeated"]["baseline"] == {"steps": STEPS, "parts_at_step": None, "why": ""}


def test_an_engine_that_draws_at_another_temperature_than_it_was_asked_to_is_not(recordings: Path) -> None:
    for stack, run, plant in (("openrlhf-before", "", ""), ("openrlhf", "warm", "engine-warm")):
        openrlhf_coupled(recordings, stack, SEED, run=run, plant=plant)
    pair = recordings / "openrlhf-before-coupled", recordings / "openrlhf-coupled-warm"
    verdict = diff(*pair, again=again(recordings))
    assert verdict.verdict == "DIVERGENT", verdict.reason
    states = {check.name: check.state for check in verdict.parity.checks} if verdict.parity else {}
    assert states["tokens"] == "confirmed" and states["baseline-itself"] == "ruled out"
