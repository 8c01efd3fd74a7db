"""How often the looks at a native stage err, and how often they decide: simulated pairs of recorded samples."""

from __future__ import annotations

import pytest
from native_pairs import ended, tally

from harness.parity.subjects.native_sampler.observed_looks import Plan


def test_sound_pairs_end_decided_and_are_not_called_different() -> None:
    """100 pairs. At an alpha of 0.001 two of them would be called different once in 200 times."""
    outcomes, draws = tally([ended(seed) for seed in range(100)])
    assert outcomes["undecided"] == 0 and outcomes["different"] <= 1
    assert draws[1] >= 85 and max(draws) <= 3


def test_the_looks_together_keep_the_error_that_is_stated() -> None:
    """At an alpha of 0.1, 100 pairs of 256 samples a draw: 10 expected at most, 21 once in a thousand times."""
    plan = Plan(alpha=0.1)
    outcomes, _ = tally([ended(seed, plan=plan, part=256) for seed in range(100)])
    assert outcomes["different"] <= 20


@pytest.mark.parametrize(("temperature", "least"), [(0.95, 20), (0.97, 19)])
def test_a_sampler_that_is_a_little_colder_is_called_different(temperature: float, least: int) -> None:
    outcomes, _ = tally([ended(seed, temperature) for seed in range(20)])
    assert outcomes["different"] >= least
