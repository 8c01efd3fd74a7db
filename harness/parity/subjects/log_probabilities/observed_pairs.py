"""Two log-probabilities of each token of a step: two engines', or an engine's and its learner's."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from harness.parity.facts.align import AlignedTokens
from harness.parity.subjects.log_probabilities.observed_metrics import TokenPlaces


@dataclass(frozen=True)
class LogprobPairs:
    """Log-probabilities of one step's tokens, flat on the grid of `tokens`, whose `a` is the rollout.

    `tokens_equal`: the positions at which both numbers are of the same token; nothing else is compared. `cached`:
    tokens of the prompt that the prefix cache held, per row, where that was recorded.
    """

    tokens: AlignedTokens
    tokens_equal: np.ndarray
    reference: np.ndarray
    compared: np.ndarray
    cached: np.ndarray | None

    @property
    def equal(self) -> slice | np.ndarray:
        """The index of `tokens_equal`; a slice, which copies nothing, where all of them are."""
        return slice(None) if self.tokens_equal.all() else self.tokens_equal

    def places(self, version: int) -> TokenPlaces:
        """Where the compared tokens stand. `version`: of the weights that drew them."""
        grid, at = self.tokens.grid, self.equal
        return TokenPlaces(
            step=self.tokens.step,
            version=version,
            row=grid.row[at],
            position=grid.position[at],
            sample=self.tokens.match.sample,
            cached=self.cached,
        )
