"""A job that went on from a checkpoint, against one that was never interrupted: only what both have is compared."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from framework_recordings import PLAN, job
from recordings import Recording, check, put

from harness.parity import judge
from reports.model import Verdict

FIRST = 3  # of PLAN's steps


def resumed(side: str, *, started: int = 0) -> Recording:
    """What the job records that goes on after FIRST steps: nothing of them but the weights that they left."""
    recording = job(side, started=started)
    recording.manifest["resumed"] = {"step": FIRST, "path": "/checkpoints/step-3"}
    for log in recording.logs.values():
        log.frames = [frame for frame in log.frames if not 0 <= frame.step < FIRST]
        log.events = [(kind, fields) for kind, fields in log.events if not _before(kind, fields)]
    return recording


def _before(kind: str, fields: dict[str, object]) -> bool:
    version, step = fields.get("version"), fields.get("step")
    if kind in ("weights", "sync") and isinstance(version, int):
        return version < FIRST
    return isinstance(step, int) and 0 <= step < FIRST


def against(folder: Path, recording: Recording) -> Verdict:
    return put(folder, job("baseline"), recording, native=False)


@pytest.mark.slow
def test_what_both_have_is_compared_and_the_rest_is_said(tmp_path: Path) -> None:
    verdict = against(tmp_path, resumed("candidate"))
    assert verdict.missing[0].startswith("steps 0 to 2 were not compared: the candidate was resumed at step 3 (/check")
    assert verdict.coverage["steps"] == PLAN.steps - FIRST
    assert verdict.verdict == "INCONCLUSIVE" and "the floor was not measured" in verdict.account
    assert check(verdict, "tokens").state == check(verdict, "learner").state == "ruled out"


@pytest.mark.slow
def test_with_a_floor_it_is_equivalent_and_the_reason_says_from_where_on(tmp_path: Path) -> None:
    one, two = job("baseline").write(tmp_path / "a"), resumed("candidate").write(tmp_path / "b")
    again = job("baseline", noise=3.3e-7, started=10**9).write(tmp_path / "again")
    verdict = judge(one, two, native=False, again={"baseline": again})
    assert verdict.verdict == "EQUIVALENT", verdict.reason
    assert "steps 0 to 2" in verdict.account


@pytest.mark.slow
def test_two_that_were_resumed_alike_lack_nothing_of_each_other(tmp_path: Path) -> None:
    verdict = put(tmp_path, resumed("baseline"), resumed("candidate"), native=False)
    assert not any("recorded no rollouts" in line for line in verdict.missing)
    assert sum("were not compared" in line for line in verdict.missing) == 2


@pytest.mark.slow
def test_a_resumed_run_that_goes_another_way_is_divergent(tmp_path: Path) -> None:
    recording = resumed("candidate")
    recording.frame("rollout", FIRST + 1).arrays["logprob"].values[:] += np.float32(0.5)  # type: ignore[union-attr]
    verdict = against(tmp_path, recording)
    assert verdict.verdict == "DIVERGENT" and f"from step {FIRST + 1} on" in verdict.account


@pytest.mark.slow
@pytest.mark.parametrize("step", [PLAN.steps, "3", True, None, -1])
def test_a_place_that_is_none_takes_nothing_away(tmp_path: Path, step: object) -> None:
    recording = resumed("candidate")
    recording.manifest["resumed"] = {"step": step}
    verdict = against(tmp_path, recording)
    refused = isinstance(step, str | bool)  # by the reader of run.json
    words = "a whole number was expected" if refused else "the candidate recorded no rollouts of step 0"
    assert verdict.verdict == "INCONCLUSIVE" and words in verdict.account


def test_a_step_that_is_lost_after_the_resumption_is_missing(tmp_path: Path) -> None:
    recording = resumed("candidate")
    for log in recording.logs.values():
        log.frames = [frame for frame in log.frames if frame.step != FIRST + 1]
    verdict = against(tmp_path, recording)
    assert f"the candidate recorded no rollouts of step {FIRST + 1}" in verdict.account
