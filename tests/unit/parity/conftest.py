"""Judgements of this room share the permutations that they draw."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np
import pytest

from harness.parity.subjects.native_sampler import observed_distributions
from harness.parity.subjects.native_sampler.observed_two_samples import PERMUTATIONS, permuted_labels

KEPT = 8  # permutations; those of 256 samples a side take 1 MiB


@pytest.fixture(scope="session", autouse=True)
def _permutations_are_drawn_once() -> Iterator[None]:
    """Permuted labels depend only on the number of samples of each prompt and side, which most pairs have in common.

    Drawing them took a third of the time of judging a small pair.
    """

    @functools.lru_cache(maxsize=KEPT)
    def drawn(baseline: bytes, stratum: bytes, dtype: str, permutations: int) -> np.ndarray:
        labels = permuted_labels(
            np.frombuffer(baseline, bool), np.frombuffer(stratum, dtype), permutations=permutations
        )
        labels.flags.writeable = False
        return labels

    def cached(baseline: np.ndarray, stratum: np.ndarray, *, permutations: int = PERMUTATIONS) -> np.ndarray:
        return drawn(baseline.tobytes(), stratum.tobytes(), stratum.dtype.str, permutations)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(observed_distributions, "permuted_labels", cached)
        yield
