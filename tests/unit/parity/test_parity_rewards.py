"""A framework's rewards and reference: what a tolerance on single values passes, its mean does not."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from framework_recordings import PLAN, job
from recordings import Jagged, Recording, check, put

from reports.model import Verdict

FOUR = dataclasses.replace(PLAN, steps=4)


def half() -> tuple[Recording, Recording]:
    """A pair in bfloat16 with equal tokens and without digests of its batches."""
    made = job("baseline", plan=FOUR, noise=0.008), job("candidate", plan=FOUR, noise=0.008)
    for run in made:
        run.manifest["scenario"]["model"]["dtype"] = "bfloat16"
        run.made = {}
        for info in run.events("engine_info"):
            info["resolved"]["dtype"] = "bfloat16"
        for learner in run.events("learner"):
            learner.pop("batch")
    for mine, theirs in zip(made[1].frames("rollout"), made[0].frames("rollout"), strict=True):
        mine.arrays["output"] = theirs.arrays["output"].copy()
    return made


def moved(folder: Path, name: str, by: Any) -> Verdict:
    """The verdict where `by(n)` was added to a column of the candidate."""
    baseline, candidate = half()
    for frame in candidate.frames("experience"):
        column = frame.arrays[name]
        if isinstance(column, Jagged):
            column.values = (column.values + by(len(column.values))).astype(np.float32)
        else:
            frame.arrays[name] = (column + by(len(column))).astype(np.float32)
    return put(folder, baseline, candidate)


@pytest.mark.slow
@pytest.mark.parametrize("by", [0.01, 0.02, -0.02])
def test_a_shift_of_all_rewards_is_no_rounding(tmp_path: Path, by: float) -> None:
    verdict = moved(tmp_path, "reward", lambda n: by)
    found = check(verdict, "rewards")
    assert (verdict.verdict, found.state) == ("DIVERGENT", "confirmed"), verdict.reason
    assert "on average" in found.evidence


@pytest.mark.slow
def test_rewards_that_round_are_within_and_never_called_equal(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    found = check(moved(tmp_path, "reward", lambda n: rng.normal(0, 0.004, n)), "rewards")
    assert found.state == "ruled out"
    assert "equal in" not in found.evidence and "largest |Δ|" in found.evidence


@pytest.mark.slow
def test_equal_rewards_are_called_equal(tmp_path: Path) -> None:
    found = check(put(tmp_path, *half()), "rewards")
    assert (found.state, found.evidence) == ("ruled out", "equal in 64 samples")


@pytest.mark.slow
def test_a_shift_of_the_reference_is_no_rounding(tmp_path: Path) -> None:
    verdict = moved(tmp_path, "reference_logprob", lambda n: 0.04)
    assert (verdict.verdict, check(verdict, "experience").state) == ("DIVERGENT", "confirmed"), verdict.reason


@pytest.mark.slow
def test_a_penalty_that_does_not_follow_from_its_columns_is_not_passed(tmp_path: Path) -> None:
    verdict = moved(tmp_path, "kl", lambda n: 0.04)
    assert verdict.verdict == "INCONCLUSIVE" or check(verdict, "experience").state == "confirmed", verdict.reason
    assert any("kl of step 0" in one for one in verdict.missing)


@pytest.mark.slow
@pytest.mark.parametrize("made", ["k1", "k2", "k3", "none"])
def test_every_estimator_of_a_framework_is_known(tmp_path: Path, made: str) -> None:
    runs = half()
    for frame in (frame for run in runs for frame in run.frames("experience")):
        actor, reference, kl = (frame.arrays[name] for name in ("actor_logprob", "reference_logprob", "kl"))
        ratio = actor.values.astype(np.float32) - reference.values.astype(np.float32)  # type: ignore[union-attr]
        values = {"k1": ratio, "k2": ratio**2 / 2, "k3": np.exp(-ratio) - 1 + ratio, "none": 0 * ratio}
        kl.values = values[made].astype(np.float32)  # type: ignore[union-attr]
    assert not any("does not follow" in one for one in put(tmp_path, *runs).missing)
