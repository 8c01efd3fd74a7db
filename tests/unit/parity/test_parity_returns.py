"""Returns that a learner's own rewards do not give are its fault, in one run and in both."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recordings import Jagged, Recording, check, learned_from, make, put, scenario

from harness.parity.audit import audit
from harness.parity.subjects.learner.observed_applied_loss import LossSums
from harness.parity.subjects.learner.observed_learner_faults import Divisor
from reports.model import Verdict

PLAN = scenario(steps=3)
Rewards = Callable[[np.ndarray, np.ndarray], np.ndarray]  # rewards, samples that stopped -> the rewards of the returns


def column(arrays: dict[str, np.ndarray | Jagged], name: str) -> Jagged:
    numbers = arrays[name]
    assert isinstance(numbers, Jagged)
    return numbers


def learned(
    side: str, rewards: Rewards = lambda reward, stopped: reward, *, penalty: float = PLAN.ppo.kl_coef, first: int = 0
) -> Recording:
    """A run whose returns are made of its rewards, from a step on of others."""
    made = make(side, PLAN, native=False)
    for frame in made.frames("experience"):
        wrong, arrays = frame.step >= first, frame.arrays
        stopped = np.array(made.frame("rollout", frame.step).fields["finish"]) == "stop"
        reward = np.asarray(arrays["reward"])
        if wrong:
            arrays["advantage"], arrays["return"] = learned_from(
                PLAN, column(arrays, "kl"), column(arrays, "value"), rewards(reward, stopped), penalty=penalty
            )
    return made


def lost_where_stopped(reward: np.ndarray, stopped: np.ndarray) -> np.ndarray:
    return np.where(stopped, 0.0, reward).astype(np.float32)


def doubled_where_stopped(reward: np.ndarray, stopped: np.ndarray) -> np.ndarray:
    return np.where(stopped, 2 * reward, reward).astype(np.float32)


def named(verdict: Verdict) -> list[tuple[str, str, bool]]:
    return [(cause.name, cause.party, bool(cause.proofs)) for cause in verdict.causes]


LOST = ("TRAINER(rewards left out of the returns)", "trainer", True)


@pytest.mark.slow
def test_returns_that_follow_are_ruled_out(tmp_path: Path) -> None:
    verdict = put(tmp_path, learned("baseline"), learned("candidate"))
    assert (verdict.verdict, check(verdict, "returns").state) == ("EQUIVALENT", "ruled out"), verdict.reason


@pytest.mark.slow
def test_rewards_that_both_learners_lose_are_found(tmp_path: Path) -> None:
    verdict = put(tmp_path, *(learned(side, lost_where_stopped) for side in ("baseline", "candidate")))
    assert verdict.verdict == "DIVERGENT" and named(verdict) == [LOST]
    assert "end tokens of samples that stopped" in verdict.causes[0].evidence


@pytest.mark.slow
@pytest.mark.parametrize("side", ["baseline", "candidate"])
def test_rewards_that_one_learner_loses_explain_what_differs(side: str, tmp_path: Path) -> None:
    recordings = [learned(name, *[lost_where_stopped] * (name == side)) for name in ("baseline", "candidate")]
    verdict = put(tmp_path, *recordings)
    assert verdict.verdict == "DIVERGENT" and named(verdict) == [LOST]


def test_one_run_by_itself_shows_lost_rewards(tmp_path: Path) -> None:
    verdict = audit(learned("baseline", lost_where_stopped, first=1).write(tmp_path / "one"))
    assert verdict.verdict == "UNSOUND" and named(verdict) == [LOST]


def test_a_penalty_that_is_left_out_is_named(tmp_path: Path) -> None:
    verdict = audit(learned("baseline", penalty=0.0).write(tmp_path / "one"))
    assert named(verdict) == [("TRAINER(KL penalty left out of the returns)", "trainer", True)]


def test_returns_that_no_reading_gives_prove_nothing(tmp_path: Path) -> None:
    verdict = audit(learned("baseline", doubled_where_stopped).write(tmp_path / "one"))
    assert verdict.verdict == "UNSOUND" and named(verdict) == [("TRAINER(returns)", "trainer", False)]


@pytest.mark.slow
def test_returns_that_are_made_in_another_way_are_not_tested(tmp_path: Path) -> None:
    runs = [make(side, PLAN, native=False) for side in ("baseline", "candidate")]
    for frame in [*runs[0].frames("experience"), *runs[1].frames("experience")]:
        numbers = column(frame.arrays, "return")
        numbers.values = np.random.default_rng(frame.step).normal(0, 1, len(numbers.values)).astype(np.float32)
    verdict = put(tmp_path, *runs)
    assert (verdict.verdict, check(verdict, "returns").state) == ("EQUIVALENT", "not tested"), verdict.reason


# --- losses against the experience ------------------------------------------------------------------

Mean = Callable[[np.ndarray, np.ndarray, np.ndarray], float]  # losses, micro-batch, sample of each token -> the loss


def over_tokens(loss: np.ndarray, part: np.ndarray, sample: np.ndarray) -> float:
    return float(loss.mean())


def over_parts(loss: np.ndarray, part: np.ndarray, sample: np.ndarray) -> float:
    return float(np.mean([loss[part == number].mean() for number in np.unique(part)]))


def over_samples(loss: np.ndarray, part: np.ndarray, sample: np.ndarray) -> float:
    return float(np.mean([loss[sample == number].mean() for number in np.unique(sample)]))


def tripled(loss: np.ndarray, part: np.ndarray, sample: np.ndarray) -> float:
    return 3 * float(loss.mean())


def trained(side: str, mean: Mean = over_tokens, *, size: int = 4, parted: bool = False) -> Recording:
    """A run that records the losses of its first updates: the actor's is a mean of this kind."""
    made = learned(side)
    for event in made.events("learner"):
        arrays = made.frame("experience", event["step"]).arrays
        numbers = np.asarray(arrays["sample"]).tolist()[:8]  # half of the step: all its advantages have the mean zero
        parts = [numbers[start : start + size] for start in range(0, len(numbers), size)]
        lengths = column(arrays, "tokens").lengths[: len(numbers)]
        sample = np.repeat(np.arange(len(lengths)), lengths)
        advantage, value, returns = (
            column(arrays, name).values[: len(sample)].astype(np.float64) for name in ("advantage", "value", "return")
        )
        losses = {
            "actor": mean(-advantage, sample // size, sample),
            "critic": over_tokens(PLAN.ppo.value_coef * (value - returns) ** 2 / 2, sample // size, sample),
        }
        event["first"] = {"parts": parts, "losses": losses}
        event["actor"] = f"another-{event['step']}" if parted else event["actor"]
    return made


@pytest.mark.slow
def test_losses_that_follow_are_ruled_out_whatever_the_micro_batches(tmp_path: Path) -> None:
    verdict = put(tmp_path, trained("baseline"), trained("candidate", size=8))
    assert (verdict.verdict, check(verdict, "applied-losses").state) == ("EQUIVALENT", "ruled out"), verdict.reason


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mean", "name", "proven"),
    [
        (over_parts, "TRAINER(size of micro-batches in the loss)", True),
        (over_samples, "TRAINER(length of samples in the loss)", True),
        (tripled, "TRAINER(loss)", False),
    ],
)
def test_another_divisor_is_named_and_explains_the_update(mean: Mean, name: str, proven: bool, tmp_path: Path) -> None:
    verdict = put(tmp_path, trained("baseline"), trained("candidate", mean, parted=True))
    assert verdict.verdict == "DIVERGENT" and named(verdict) == [(name, "trainer", proven)]
    assert verdict.causes[0].details["side"] == "candidate"


def with_ratio(made: Recording, *, divergence: float, shift: float = 0.5, updates: int = 4) -> Recording:
    """A run of so many updates a step, which moved the log-probabilities by `shift` nats in the mean."""
    for event in made.events("learner"):
        event["norms"] = {"actor": [1.0] * updates, "critic": [1.0] * updates}
    for event in made.events("step"):
        event["metrics"] |= {"approx_kl": divergence, "update_logprob_shift": shift}
    return made


OLD_LOGPROBS = "TRAINER(old log-probabilities of the loss)"


@pytest.mark.parametrize(
    ("ratio", "names"),
    [
        pytest.param({"divergence": 0.0}, [(OLD_LOGPROBS, "trainer", False)], id="the ratio stays one"),
        pytest.param({"divergence": 1e-5}, [], id="it moves"),
        pytest.param({"divergence": 0.0, "updates": 1}, [], id="one update a step"),
        pytest.param({"divergence": 0.0, "shift": 1e-4}, [], id="a shift that rounding hides"),
    ],
)
def test_a_ratio_that_stays_one_while_the_policy_moves_is_named(
    ratio: dict[str, Any], names: list[tuple[str, str, bool]], tmp_path: Path
) -> None:
    verdict = audit(with_ratio(trained("baseline"), **ratio).write(tmp_path / "one"))
    assert named(verdict) == names


@pytest.mark.slow
def test_a_ratio_that_stays_one_explains_another_learner(tmp_path: Path) -> None:
    sides = (
        with_ratio(trained("baseline"), divergence=0.1),
        with_ratio(trained("candidate", parted=True), divergence=0.0),
    )
    verdict = put(tmp_path, *sides)
    assert verdict.verdict == "DIVERGENT" and named(verdict) == [(OLD_LOGPROBS, "trainer", False)]


def test_one_run_by_itself_shows_another_divisor(tmp_path: Path) -> None:
    verdict = audit(trained("baseline", over_parts).write(tmp_path / "one"))
    assert verdict.verdict == "UNSOUND"
    assert named(verdict) == [("TRAINER(size of micro-batches in the loss)", "trainer", True)]


@pytest.mark.slow
def test_a_loss_of_wrong_log_probabilities_is_no_second_cause(tmp_path: Path) -> None:
    """With them the ratio of the first update is not one."""
    candidate = trained("candidate", tripled)
    for frame in candidate.frames("experience"):
        logprob = column(frame.arrays, "actor_logprob")
        logprob.values = logprob.values / np.float32(0.7)
    verdict = put(tmp_path, trained("baseline"), candidate)
    assert [name for name, _, _ in named(verdict)] == ["TRAINER(log-probabilities scaled)"]


def test_parts_of_equal_lengths_tell_no_divisor(tmp_path: Path) -> None:
    verdict = audit(trained("baseline", over_parts, size=1).write(tmp_path / "one"))
    assert not verdict.causes or not verdict.causes[0].proofs  # each part is a sample: two divisors give the same


@pytest.mark.slow
def test_losses_that_one_run_does_not_record_are_not_tested(tmp_path: Path) -> None:
    verdict = put(tmp_path, learned("baseline"), trained("candidate"))
    assert check(verdict, "applied-losses").state == "not tested"


NEARER = {0: set(Divisor), 1: {Divisor.SAMPLES}, 2: {Divisor.MICRO_BATCHES}, 3: {Divisor.MICRO_BATCHES, Divisor.RANKS}}


@pytest.mark.parametrize(
    ("divisor", "first", "since"),
    [
        (Divisor.MICRO_BATCHES, 4, 2),  # in step 1 it is not nearer
        (Divisor.RANKS, 4, 3),
        (Divisor.SAMPLES, 4, 4),
        (Divisor.MICRO_BATCHES, 2, 2),
        (None, 4, 4),
    ],
)
def test_a_divisor_counts_from_the_step_from_which_on_it_is_nearer(
    divisor: Divisor | None, first: int, since: int
) -> None:
    assert LossSums({}, nearer=NEARER)._since(divisor, first) == since
