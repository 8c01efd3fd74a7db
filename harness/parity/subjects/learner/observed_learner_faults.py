"""What a learner's own records show of it: its returns against its rewards, its losses against its experience."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from harness.parity.subjects.log_probabilities.observed_separations import Separation


class Reading(StrEnum):
    """A term that is left out when the returns are made again, with its name in a cause."""

    NO_REWARD = "rewards left out of the returns"
    NO_PENALTY = "KL penalty left out of the returns"


@dataclass(frozen=True)
class Returns:
    """`compared`: samples whose returns could be made again; 0 where the settings do not say how they were made.

    `items`: (step, sample) of those whose returns do not follow from their rewards. `reading`: the one that gives every
    number of theirs again. `separations`: the exact ones, of the tokens that have another reward.
    """

    compared: int = 0
    items: np.ndarray = field(default_factory=lambda: np.empty((0, 2), np.int64))
    reading: Reading | None = None
    separations: tuple[Separation, ...] = ()


class Divisor(StrEnum):
    """What a loss is a mean over in place of the mini-batch's tokens, with its name in a cause."""

    MICRO_BATCHES = "size of micro-batches in the loss"
    SAMPLES = "length of samples in the loss"
    RANKS = "number of ranks in the loss"


@dataclass(frozen=True)
class AppliedLosses:
    """`compared`: losses of first updates, of each role, that would show another divisor. `wrong`: those that do not
    follow from the experience, in `steps` and of `roles`. `divisor`: the only one that gives each of them again, and
    `since` the first step from which on it is nearer to each loss than the mean is. `fixed_ratio`: steps in which the
    ratio of probabilities stayed one, although an update had moved the policy.
    """

    compared: int = 0
    wrong: int = 0
    steps: tuple[int, ...] = ()
    roles: tuple[str, ...] = ()
    divisor: Divisor | None = None
    fixed_ratio: tuple[int, ...] = ()
    since: int = 0
