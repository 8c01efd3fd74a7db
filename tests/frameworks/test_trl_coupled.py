"""TRL's colocated vLLM with coupled sampling: an engine that batches otherwise draws the same samples, and does not
without it."""

from __future__ import annotations

from pathlib import Path

import pytest
from framework_jobs import LIMIT_S, assert_hooks, assert_tokens_agree, rows, trl_colocated

from probes.format import Run

pytestmark = pytest.mark.timeout(4 * LIMIT_S)
STEPS, SAMPLES, SEED = 3, 16, 7


def equal(one: Run, two: Run) -> tuple[int, int]:
    """(samples of the first step with equal responses, tokens that are equal at their place)."""
    left, right = rows(one, "rollout")[0], rows(two, "rollout")[0]
    pairs = [(list(left[sample]["output"]), list(right[sample]["output"])) for sample in left]
    return sum(a == b for a, b in pairs), sum(x == y for a, b in pairs for x, y in zip(a, b, strict=False))


def test_an_engine_that_batches_otherwise_draws_the_same_samples(recordings: Path) -> None:
    one = trl_colocated(recordings, "trl-coupled", SEED)
    few = trl_colocated(recordings, "trl-coupled-few", SEED, plant="engine-few")
    for run in (one, few):
        assert_hooks(run)
        assert_tokens_agree(run, STEPS, SAMPLES)
        assert run.manifest["scenario"]["rollout"]["mode"] == "coupled"
        assert {frame.fields["mode"] for frame in run.frames("rollout")} == {"coupled"}
    engines = [event["resolved"]["max_num_seqs"] for run in (one, few) for event in run.events("engine_info")]
    assert engines == [SAMPLES, 3], engines
    responses = [tuple(row["output"]) for row in rows(one, "rollout")[0].values()]
    assert len(set(responses)) > SAMPLES // 2  # a group's samples are not one sample four times
    # Both compute in bfloat16, so that another batch may bring a tie.
    assert equal(one, few)[0] >= SAMPLES - 1


def test_without_coupling_they_part(recordings: Path) -> None:
    one, few = trl_colocated(recordings, "trl-vllm"), trl_colocated(recordings, "trl-vllm-few", plant="engine-few")
    assert {frame.fields["mode"] for run in (one, few) for frame in run.frames("rollout")} == {"native"}
    assert equal(one, few)[0] < SAMPLES // 2
