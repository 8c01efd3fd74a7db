"""A learner that computes samples with their pads is named, and nothing else that stands in short prompts is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from recordings import FrameRecord, Jagged, Recording, learn_again, make, pair, put, scenario

from harness.parity.audit import audit
from harness.parity.causes.family import Seen
from reports.model import Cause

pytestmark = pytest.mark.slow
PLAN = scenario(prompts=2, group=8, seed=1)  # so few that some prompt is the longest of one step only
Rows = Callable[[np.ndarray], np.ndarray]  # lengths of a step's prompts -> mask of its samples


def padded(lengths: np.ndarray) -> np.ndarray:
    return lengths < lengths.max()


def short(lengths: np.ndarray) -> np.ndarray:
    return lengths <= 14


def every_other(lengths: np.ndarray) -> np.ndarray:
    return np.arange(len(lengths)) % 2 == 0


def all_but_one(lengths: np.ndarray) -> np.ndarray:
    """The padded samples, and one that is not."""
    rows = padded(lengths)
    rows[np.flatnonzero(~rows)[:1]] = True
    return rows


def plant(made: Recording, kind: str, column: str, rows: Rows) -> None:
    for frame in made.frames(kind):
        lengths = _column(made.frame("rollout", frame.step), "prompt").lengths
        for name in (column, "kl") if kind == "experience" else (column,):  # kl: the actor less the reference
            numbers = _column(frame, name)
            numbers.values[np.repeat(rows(lengths), numbers.lengths)] -= 0.05
        if kind == "experience":
            learn_again(PLAN, frame)


def _column(frame: FrameRecord, name: str) -> Jagged:
    column = frame.arrays[name]
    assert isinstance(column, Jagged)
    return column


def of_padding(causes: list[Cause]) -> list[tuple[str, bool]]:
    """The parties of the cause, and whether a fault of short prompts is excluded."""
    return [(cause.party, Seen.PADS_ALONE in cause.observed) for cause in causes if cause.name == "PADDING"]


@pytest.mark.parametrize(("engine", "party"), [("vllm", "trainer"), ("hf", "unknown"), ("another", "unknown")])
def test_a_learner_that_reads_pads_is_named_where_its_engine_has_none(engine: str, party: str, tmp_path: Path) -> None:
    made = make("baseline", PLAN, native=False)
    made.manifest["backend"] = engine
    for event in made.events("engine_info"):
        event["engine"] = engine
    plant(made, "experience", "actor_logprob", padded)
    verdict = audit(made.write(tmp_path / "one"))
    assert verdict.verdict == "UNSOUND"
    assert of_padding(verdict.causes) == [(party, True)]
    assert not any(cause.proofs for cause in verdict.causes)


@pytest.mark.parametrize("rows", [short, every_other, all_but_one])
def test_other_faults_are_no_padding(rows: Rows, tmp_path: Path) -> None:
    made = make("baseline", PLAN, native=False)
    plant(made, "experience", "actor_logprob", rows)
    verdict = audit(made.write(tmp_path / "one"))
    assert verdict.verdict == "UNSOUND" and not of_padding(verdict.causes)


def test_two_engines_that_agree_leave_the_pads_to_their_learners(tmp_path: Path) -> None:
    recordings = pair(plan=PLAN, native=False)
    for made in recordings:
        plant(made, "experience", "actor_logprob", padded)
    assert of_padding(put(tmp_path, *recordings).causes) == [("trainer", True)]


def test_an_engine_that_moved_in_short_prompts_is_no_learner_that_reads_pads(tmp_path: Path) -> None:
    baseline, candidate = pair(plan=PLAN, native=False)
    plant(candidate, "rollout", "logprob", padded)
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == "DIVERGENT" and not of_padding(verdict.causes)
    assert all(cause.party == "candidate" for cause in verdict.causes)


FIRST = 1  # the first step of PLAN in which a batch pads


@pytest.fixture
def reads_pads() -> tuple[Recording, Recording]:
    """A pair whose candidate's learner reads pads, normalises all advantages of that batch otherwise, and so makes
    another first update.
    """
    baseline, candidate = make("baseline", PLAN, native=False), make("candidate", PLAN, native=False, parted=FIRST + 1)
    plant(candidate, "experience", "actor_logprob", padded)
    _column(candidate.frame("experience", FIRST), "advantage").values *= 0.99
    return baseline, candidate


def test_what_a_batch_and_its_update_make_of_the_pads_is_no_second_cause(
    reads_pads: tuple[Recording, Recording], tmp_path: Path
) -> None:
    verdict = put(tmp_path, *reads_pads)
    assert verdict.verdict == "DIVERGENT"
    assert [(cause.name, cause.party) for cause in verdict.causes] == [("PADDING", "trainer")]


@pytest.mark.by_day(3)
@pytest.mark.parametrize("column", ["value", "return", "reference_logprob", "reward"])
@pytest.mark.parametrize("rows", [padded, lambda lengths: ~padded(lengths)])
def test_a_second_fault_beside_the_pads_stays_open(
    column: str, rows: Rows, reads_pads: tuple[Recording, Recording], tmp_path: Path
) -> None:
    baseline, candidate = reads_pads
    experience = candidate.frame("experience", FIRST)
    numbers = experience.arrays[column]
    mask = rows(_column(candidate.frame("rollout", FIRST), "prompt").lengths)
    if isinstance(numbers, Jagged):
        numbers.values[np.repeat(mask, numbers.lengths)] += 0.5
    else:
        numbers[mask] += 0.5
    if column != "return":
        learn_again(PLAN, experience)
    causes = [cause.name for cause in put(tmp_path, baseline, candidate).causes]
    assert causes == ["PADDING", "TRAINER(returns)" if column == "return" else "UNEXPLAINED"]


def test_an_engine_that_moved_beside_the_pads_is_not_covered(
    reads_pads: tuple[Recording, Recording], tmp_path: Path
) -> None:
    baseline, candidate = reads_pads
    plant(candidate, "rollout", "logprob", lambda lengths: ~padded(lengths))
    assert {cause.name for cause in put(tmp_path, baseline, candidate).causes} != {"PADDING"}
