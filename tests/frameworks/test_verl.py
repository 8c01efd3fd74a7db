"""verl's own job with vLLM and with SGLang, recorded and diffed: minutes, so not among the tests of `make test`."""

from __future__ import annotations

from pathlib import Path

import pytest
from framework_jobs import LIMIT_S, assert_hooks, assert_tokens_agree, rows, verl

from harness.parity.runs.run import diff
from probes.format import Frame, Run
from reports.model import SUSPICIONS

pytestmark = pytest.mark.timeout(4 * LIMIT_S)
STEPS, PROMPTS, GROUP = 2, 4, 4


@pytest.fixture(scope="module", params=["vllm", "sglang"])
def recording(request: pytest.FixtureRequest, recordings: Path) -> Run:
    return verl(recordings, request.param)


def test_every_hook_that_a_job_calls_fires(recording: Run) -> None:
    assert_hooks(recording)


def test_the_job_is_known_from_its_recording(recording: Run) -> None:
    manifest = recording.manifest
    assert (manifest["framework"], manifest["framework_version"], manifest["exit_code"]) == ("verl", "0.9.1", 0)
    assert manifest["scenario"]["rollout"]["samples_per_prompt"] == GROUP
    assert manifest["scenario"]["model"]["dtype"] == "bfloat16"  # of the learner, which nobody asked for
    [engine] = recording.events("engine_info")
    assert engine["engine"] == manifest["backend"]
    assert engine["resolved"]["dtype"] == "float32"
    assert manifest["seeds"]["engine"] == (42 if engine["engine"] == "vllm" else None)


def test_what_was_drawn_is_what_was_trained_on(recording: Run) -> None:
    assert_tokens_agree(recording, STEPS, PROMPTS * GROUP)


def test_samples_of_a_group_have_one_prompt(recording: Run) -> None:
    for step in rows(recording, "rollout").values():
        prompts = [tuple(step[sample]["prompt"]) for sample in sorted(step)]
        groups = [set(prompts[first : first + GROUP]) for first in range(0, len(prompts), GROUP)]
        assert all(len(group) == 1 for group in groups) and len(set.union(*groups)) == PROMPTS


def test_log_probabilities_are_the_engines_own(recording: Run) -> None:
    for step in rows(recording, "rollout").values():
        for row in step.values():
            assert len(row["logprob"]) == len(row["output"]) and max(row["logprob"]) <= 0


def test_each_step_syncs_and_says_what_it_measured(recording: Run) -> None:
    assert [event["version"] for event in recording.events("sync")] == [0, 1, 2]
    assert [event["step"] for event in recording.events("step")] == [0, 1]
    versions = [event["version"] for event in recording.events("weights") if event["source"] == "learner"]
    assert versions == [0, 1, 2]


def test_the_engine_received_the_weights_that_the_learner_sent(recording: Run) -> None:
    found = {(one["source"], one["version"]): one["digests"] for one in recording.events("weights")}
    for version in (0, 1, 2):
        assert found["learner", version] and found["received", version] == found["learner", version]


def test_the_engines_own_process_says_which_prompt_each_sample_had(recording: Run) -> None:
    seen = {int(key): row for frame in recording.frames("seen") for key, row in _requests(frame, "prompt_seen")}
    drawn = {int(key): row for frame in recording.frames("rollout") for key, row in _requests(frame, "prompt")}
    assert len(drawn) == STEPS * PROMPTS * GROUP
    assert {key: seen[key] for key in drawn} == drawn
    engines = {frame.role for frame in recording.frames("seen")}
    assert not engines & {frame.role for frame in recording.frames("rollout")}  # nobody recorded what he had sent


def _requests(frame: Frame, prompts: str) -> zip[tuple[int, list[int]]]:
    return zip(frame.arrays["request"].tolist(), frame.arrays[prompts].tolist(), strict=True)


def test_the_two_engines_are_diffed_and_neither_is_blamed_for_its_own_samples(recordings: Path) -> None:
    for engine in ("vllm", "sglang"):
        verl(recordings, engine)
    verdict = diff(recordings / "verl-vllm", recordings / "verl-sglang")
    assert verdict.verdict == "INCONCLUSIVE" and verdict.parity is not None
    assert verdict.causes == [] and verdict.confounders == []
    states = {check.name: check.state for check in verdict.parity.checks}
    assert states["engine-against-learner"] == states["trained-tokens"] == "ruled out"
    assert states["learner"] == "not tested"  # it trained on other samples


def test_two_coupled_engines_draw_the_same_samples(recordings: Path) -> None:
    for engine in ("vllm", "sglang"):
        verl(recordings, engine, seed=7)
    one, two = (rows(Run(recordings / f"verl-{engine}-coupled"), "rollout") for engine in ("vllm", "sglang"))
    for step in range(STEPS):
        for sample, row in one[step].items():
            assert row["output"] == two[step][sample]["output"]
            assert row["logprob"] == pytest.approx(two[step][sample]["logprob"], abs=1e-4)
    verdict = diff(recordings / "verl-vllm-coupled", recordings / "verl-sglang-coupled")
    states = {check.name: check.state for check in verdict.parity.checks} if verdict.parity else {}
    shown = ("tokens", "lengths", "finish-reasons", "logprobs", "experience", "rewards", "learner", "weight-sync")
    for name in (*shown, SUSPICIONS[1], SUSPICIONS[10]):
        assert states[name] == "ruled out", (name, verdict.reason)


def test_a_prompt_that_is_cut_in_one_engine_is_found_at_that_prompt(recordings: Path) -> None:
    """Planted in the scheduler's process of the candidate: the first ids of four prompts of the first step."""
    verl(recordings, "vllm", seed=7)
    verl(recordings, "vllm", seed=7, run="cut", plant="engine-cuts")
    verdict = diff(recordings / "verl-vllm-coupled", recordings / "verl-vllm-coupled-cut")
    assert verdict.verdict == "DIVERGENT" and verdict.parity is not None, verdict.reason
    [found] = [check for check in verdict.parity.checks if check.name == SUSPICIONS[10]]
    assert found.state == "confirmed" and "candidate: truncated left in 4 samples" in found.evidence
    place = verdict.parity.first_divergence
    assert place is not None and (place.step, place.phase, place.sample) == (0, "prompt", GROUP - 1)


def test_a_coupled_job_is_itself_again_to_the_bit(recordings: Path) -> None:
    for run in ("", "again"):
        found = verl(recordings, "vllm", seed=7, run=run)
        orders = [frame.fields["order"] for frame in found.frames("experience")]
        assert orders == [list(range(PROMPTS * GROUP))] * STEPS  # as their prompts were taken from the data
    verl(recordings, "sglang", seed=7)
    again = recordings / "verl-vllm-coupled-again"
    verdict = diff(recordings / "verl-vllm-coupled", recordings / "verl-sglang-coupled", again=again)
    states = {check.name: check.state for check in verdict.parity.checks} if verdict.parity else {}
    assert states["baseline-itself"] == "ruled out", verdict.reason
    assert verdict.coverage["repeated"]["baseline"]["parts_at_step"] is None
