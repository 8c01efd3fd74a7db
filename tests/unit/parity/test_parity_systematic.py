"""Means in float32: a bias below the tolerance on single tokens is found, and sound kernels are no bias."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from recordings import Recording, causes, check, pair, put, scenario

from harness.parity.facts.align import Grid
from harness.parity.subjects.log_probabilities import observed_systematic as systematic
from harness.parity.subjects.log_probabilities.observed_pairs import LogprobPairs
from harness.parity.subjects.precision.observed_floor import CAPS, EPSILON, RESOLUTION, Tolerance

FLOAT32 = scenario(dtype="float32")
ENGINES = systematic.Means(systematic.Compared.ENGINES)


def add(recording: Recording, by: float, *, every: int = 1) -> None:
    for frame in recording.frames("rollout"):
        frame.arrays["logprob"].values[::every] += np.float32(by)


@pytest.mark.by_day(2)
@pytest.mark.slow
@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("by", [1e-5, -1e-5])
def test_a_bias_below_the_tolerance_is_found_in_float32(tmp_path: Path, by: float, every: int) -> None:
    """A hundred times the pair's own mean |Δ|, and EQUIVALENT by every single token."""
    baseline, candidate = pair(plan=FLOAT32, native=False)
    add(candidate, by, every=every)
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == "DIVERGENT", verdict.reason
    assert causes(verdict) == ["UNEXPLAINED"]
    assert check(verdict, "systematic").state == "confirmed"


@pytest.mark.slow
def test_zero_mean_noise_of_ten_floors_is_found_by_its_size(tmp_path: Path) -> None:
    baseline, candidate = pair(plan=FLOAT32, native=False)
    rng = np.random.default_rng(8)
    for frame in candidate.frames("rollout"):
        values = frame.arrays["logprob"].values
        frame.arrays["logprob"].values = values + rng.choice([-1e-5, 1e-5], len(values)).astype(np.float32)
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == "DIVERGENT", verdict.reason
    assert "times the floor's own mean" in check(verdict, "systematic").evidence


@pytest.mark.slow
def test_a_bias_of_both_engines_shows_against_their_learners(tmp_path: Path) -> None:
    baseline, candidate = pair(plan=FLOAT32, native=False)
    add(baseline, 1e-5)
    add(candidate, 1e-5)
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == "DIVERGENT", verdict.reason


@pytest.mark.slow
def test_a_sound_pair_says_what_would_have_been_found(tmp_path: Path) -> None:
    verdict = put(tmp_path, *pair(plan=FLOAT32, native=False))
    told = check(verdict, "systematic")
    assert verdict.verdict == "EQUIVALENT" and told.state == "ruled out", verdict.reason
    assert told.details["error rate of all tests"] == systematic.FALSE_ALARM
    assert told.details["smallest"]["logprob"]["bias of the run"] < 1e-5


@pytest.mark.slow
def test_without_a_floor_the_size_is_not_tested_and_a_bias_is(tmp_path: Path) -> None:
    baseline, candidate = pair(plan=FLOAT32, native=False)
    for recording in (baseline, candidate):
        for log in recording.logs.values():
            log.frames = [frame for frame in log.frames if frame.kind != "floor"]
    add(candidate, 1e-5)
    verdict = put(tmp_path, baseline, candidate)
    told = check(verdict, "systematic")
    assert told.state == "confirmed" and "size" not in str(told.details["smallest"])


def test_the_unit_of_size_is_the_floor_but_never_less_than_one_rounding() -> None:
    tolerance = Tolerance("float32", CAPS["float32"], RESOLUTION * EPSILON * 16, 1e-6, 1.0)
    one_rounding = EPSILON * 16 / 4
    assert systematic.Null.of(tolerance, 0.0).floor == pytest.approx(one_rounding)
    assert systematic.Null.of(tolerance, 2e-6).floor == pytest.approx(2e-6)
    assert systematic.Null.of(tolerance, 1.0).floor == pytest.approx(CAPS["float32"] / systematic.APART)
    assert np.isnan(systematic.Null.of(tolerance, float("nan")).floor or 0)


@pytest.mark.slow
def test_rounding_with_what_a_prompt_shares_raises_no_alarm_in_float32() -> None:
    """Heavy tails, and errors that samples of one prompt share; 1,000 runs of the floor's own size."""
    rng, alarms, trials = np.random.default_rng(4), 0, 1000
    null = systematic.Null(1.0, 2e-7, 2e-7)
    for _ in range(trials):
        drift = systematic.Drift()
        for step in range(3):
            cluster = np.arange(8) + 8 * step
            shared = np.repeat(rng.normal(0, 1e-7, 8), 40)
            delta = shared + rng.standard_t(4, len(shared)) * 1.5e-7
            grid = Grid(np.full(8, 40))
            drift.add(step, cluster, LogprobPairs(grid, np.ones(grid.size, bool), np.zeros(grid.size), delta, cluster))
        alarms += any(one.found for one in systematic.tested({ENGINES: drift}, null)[ENGINES])
    assert alarms <= 10 * systematic.FALSE_ALARM * trials


def test_runs_of_own_samplers_that_no_learner_scored_have_no_means(tmp_path: Path) -> None:
    """As two jobs of one framework with equal seeds are: it was an error."""
    baseline, candidate = pair(plan=scenario(dtype="float32", mode="native"), native=False)
    for one in (baseline, candidate):
        one.drop("experience")
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.parity is not None
    assert not any(one.name == "systematic" for one in verdict.parity.checks)
