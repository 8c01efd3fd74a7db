"""One value changed in one sample of a recording, with checksums that fit: no cause is named that it does not show."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from recordings import Jagged, Recording
from tampered_runs import OWN, judged, sound

SIDES = ("baseline", "candidate")
STEP = 1
Change = Callable[[Recording], None]


def raised(kind: str, name: str, amount: float, samples: int) -> Change:
    """The first value of a column, raised in this many samples of one step."""

    def change(run: Recording) -> None:
        column = [*run.frames(kind)][STEP].arrays[name]
        starts = np.concatenate([[0], np.cumsum(column.lengths)]) if isinstance(column, Jagged) else None
        values = column.values if isinstance(column, Jagged) else column
        for row in range(1, 1 + samples):
            values[int(starts[row]) if starts is not None else row] += amount

    return change


def version(run: Recording) -> None:
    [*run.frames("rollout")][STEP].fields["weight_version"] += 1


def prompts_sent_and_seen(run: Recording) -> None:
    for name in ("prompt", "prompt_seen"):
        raised("rollout", name, 1, 1)(run)


UNEXPLAINED: dict[str, Change] = {
    **{f"{count} prompts": raised("rollout", "prompt", 1, count) for count in (1, 2)},
    **{f"{count} responses": raised("rollout", "output", 1, count) for count in (1, 2)},
    **{f"{count} log-probabilities": raised("rollout", "logprob", 0.5, count) for count in (1, 2)},
    "a trained token": raised("experience", "tokens", 1, 1),
    "a log-probability of the learner": raised("experience", "actor_logprob", 0.5, 1),
    "a value": raised("experience", "value", 0.5, 1),
    "a version": version,
    "a prompt that the engine saw": raised("rollout", "prompt_seen", 1, 1),
}


@pytest.mark.by_day(6)
@pytest.mark.slow
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("name", UNEXPLAINED)
def test_a_change_that_nothing_explains_has_no_cause(name: str, side: str) -> None:
    runs = sound(OWN, native=False)
    UNEXPLAINED[name](runs.of(side))
    verdict = judged(runs)
    assert {cause.key.family for cause in verdict.causes} <= {"UNEXPLAINED"}, [cause.name for cause in verdict.causes]
    assert verdict.verdict in ("DIVERGENT", "INCONCLUSIVE")


def every_request_of_a_prompt(run: Recording) -> None:
    frame = [*run.frames("rollout")][STEP]
    prompt, observed = frame.arrays["prompt"], frame.arrays["prompt_seen"]
    assert isinstance(prompt, Jagged) and isinstance(observed, Jagged)
    for ids, row in zip(prompt.rows(), observed.rows(), strict=True):
        if np.array_equal(ids, prompt.rows()[0]):
            row[1] += 1


@pytest.mark.slow
@pytest.mark.parametrize("side", SIDES)
def test_a_prompt_that_only_the_engine_saw_is_one_of_other_ids(side: str) -> None:
    """The control: whoever was sent the prompt saw other ids, and the digest of the data says which were sent."""
    runs = sound(OWN, native=False)
    every_request_of_a_prompt(runs.of(side))
    assert [(cause.key.family, cause.party) for cause in judged(runs).causes] == [("TOKENIZATION", side)]


@pytest.mark.slow
@pytest.mark.parametrize("side", SIDES)
def test_responses_under_other_sample_numbers_are_of_the_run_that_trained_on_others(side: str) -> None:
    runs = sound(OWN, native=False)
    numbers = [*runs.of(side).frames("rollout")][STEP].arrays["sample"]
    numbers[[1, 2]] = numbers[[2, 1]]
    assert {cause.party for cause in judged(runs).causes if cause.key.family == "ORDER"} == {side}


@pytest.mark.slow
def test_another_prompt_confounds() -> None:
    runs = sound(OWN, native=False)
    prompts_sent_and_seen(runs.candidate)
    verdict = judged(runs)
    assert verdict.verdict == "CONFOUNDED" and not verdict.causes
