"""How often the looks at a native stage err, and how often they decide: simulated pairs of recorded samples."""

from __future__ import annotations

import dataclasses
import os

import pytest
from native_pairs import DEFAULT_PLAN, ended, tally

PAIRS = 100 if os.environ.get("TEST_PROFILE") == "nightly" else 50


def test_sound_pairs_end_decided_and_are_not_called_different() -> None:
    """At an alpha of 0.001 two of 100 pairs would be called different once in 200 times."""
    outcomes, draws = tally([ended(seed) for seed in range(PAIRS)])
    assert outcomes["undecided"] == 0 and outcomes["different"] <= 1
    assert draws[1] >= 0.85 * PAIRS and max(draws) <= 9


def test_the_looks_together_keep_the_error_that_is_stated() -> None:
    """At an alpha of 0.1, pairs whose first draw has 256 samples. One in ten is expected to be called different at
    most. 21 of 100 are once in a thousand times, and so are 13 of 50.
    """
    plan = dataclasses.replace(DEFAULT_PLAN, alpha=0.1)
    outcomes, _ = tally([ended(seed, plan=plan, first=256) for seed in range(PAIRS)])
    assert outcomes["different"] <= {100: 20, 50: 12}[PAIRS]


@pytest.mark.parametrize(("temperature", "least"), [(0.95, 20), (0.97, 19)])
def test_a_sampler_that_is_a_little_colder_is_called_different(temperature: float, least: int) -> None:
    outcomes, _ = tally([ended(seed, temperature) for seed in range(20)])
    assert outcomes["different"] >= least
