"""TRL's GRPO on two ranks, and resumed: each rank's part is there, and what cannot be compared is said."""

from __future__ import annotations

from pathlib import Path

import pytest
from framework_jobs import LIMIT_S, assert_hooks, assert_tokens_agree, rows, trl

from harness.parity.verdict import judge
from probes.format import Run
from reports.model import Verdict

pytestmark = pytest.mark.timeout(2 * LIMIT_S)
STEPS, OWN, WORLD, FIRST = 4, 16, 2, 2  # OWN: samples of a rank in a step; FIRST: step of the resumed run
SAVED = ("--save", "--steps", str(STEPS), "--save-steps", str(FIRST))


@pytest.fixture(scope="module")
def ranks(recordings: Path) -> Run:
    return trl(recordings, "trl-ranks", *SAVED, ranks=WORLD)


@pytest.fixture(scope="module")
def straight(recordings: Path) -> Run:
    return trl(recordings, "trl-straight", *SAVED)


def resumed(recordings: Path, name: str, *options: str) -> Run:
    return trl(recordings, name, *SAVED, "--resume", str(recordings / "trl-straight-job" / "checkpoint-2"), *options)


def states(verdict: Verdict) -> dict[str, str]:
    return {check.name: check.state for check in verdict.parity.checks} if verdict.parity else {}


def test_each_rank_records_its_own_samples_under_numbers_of_their_own(ranks: Run) -> None:
    assert_hooks(ranks)
    trainers = [(one["rank"], one["world_size"]) for one in ranks.events("open") if one["role"] == "trainer"]
    assert sorted(trainers) == [(rank, WORLD) for rank in range(WORLD)]
    assert_tokens_agree(ranks, STEPS, WORLD * OWN)  # all of them, none twice
    for kind in ("rollout", "experience"):
        for frame in ranks.frames(kind):
            own = range(frame.rank * OWN, (frame.rank + 1) * OWN)
            assert set(frame.arrays["sample"].tolist()) <= set(own), (kind, frame.rank)
    for step in rows(ranks, "rollout").values():
        assert len({tuple(row["output"]) for row in step.values()}) > OWN  # the ranks draw otherwise


def test_each_rank_says_its_shapes_and_both_have_the_same_weights(ranks: Run) -> None:
    shapes = [(one["step"], one["rank"], one["samples"]) for one in ranks.events("shapes")]
    assert sorted(shapes) == [(step, rank, OWN) for step in range(STEPS) for rank in range(WORLD)]
    digests = {(one["step"], one["rank"]): one["actor"] for one in ranks.events("learner")}
    assert len(digests) == WORLD * STEPS and len(set(digests.values())) == STEPS
    assert [one["world_size"] for one in ranks.events("group")] == [WORLD] * WORLD


def test_the_same_seeds_are_the_same_run_on_both_ranks(recordings: Path, ranks: Run) -> None:
    verdict = judge(ranks, trl(recordings, "trl-ranks-again", *SAVED, ranks=WORLD))
    found = states(verdict)
    for name in ("tokens", "lengths", "trained-tokens", "experience", "rewards", "learner", "collective-backend"):
        assert found[name] == "ruled out", (name, verdict.reason)
    assert verdict.coverage["samples"] == STEPS * WORLD * OWN
    assert verdict.coverage["compared_tokens"] == verdict.coverage["tokens"] > 0
    assert verdict.verdict == "INCONCLUSIVE" and "the floor was not measured" in verdict.account


def test_another_seed_confounds_two_ranks_as_well(recordings: Path, ranks: Run) -> None:
    verdict = judge(ranks, trl(recordings, "trl-ranks-seed", *SAVED, "--seed", "1", ranks=WORLD))
    assert verdict.verdict == "CONFOUNDED" and "seed is 0 in the baseline and 1 in the candidate" in verdict.account
    assert {"seed", "data"} <= {one.name for one in verdict.confounders}


def test_one_rank_is_no_second_run_of_two(ranks: Run, straight: Run) -> None:
    verdict = judge(ranks, straight)
    assert verdict.verdict in ("CONFOUNDED", "INCONCLUSIVE")
    assert "rollout.prompts_per_step" in {one.name for one in verdict.confounders}


def test_a_resumed_job_is_compared_from_where_it_goes_on(recordings: Path, straight: Run) -> None:
    run = resumed(recordings, "trl-resumed")
    assert_hooks(run)
    assert run.manifest["resumed"]["step"] == FIRST and run.manifest["resumed"]["path"].endswith("checkpoint-2")
    assert sorted(rows(run, "rollout")) == sorted(rows(run, "experience")) == list(range(FIRST, STEPS))
    assert {frame.fields["weight_version"] for frame in run.frames("rollout")} == set(range(FIRST, STEPS))
    for pair in ((straight, run), (run, straight)):
        verdict = judge(*pair)
        side = "candidate" if pair[1] is run else "baseline"
        assert verdict.missing[0].startswith(f"steps 0 to 1 were not compared: the {side} was resumed at step {FIRST}")
        assert verdict.coverage["steps"] == STEPS - FIRST
        for name in ("tokens", "experience", "rewards", "learner"):  # resumed equals uninterrupted
            assert states(verdict)[name] == "ruled out", (name, verdict.reason)
        assert verdict.verdict == "INCONCLUSIVE" and "the floor was not measured" in verdict.account


def test_a_resumed_job_with_other_settings_is_confounded(recordings: Path, straight: Run) -> None:
    verdict = judge(straight, resumed(recordings, "trl-resumed-rate", "--rate", "5e-4"))
    assert verdict.verdict == "CONFOUNDED" and "learning_rate" in verdict.account
