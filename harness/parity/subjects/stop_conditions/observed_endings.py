"""Samples of both runs that end differently. `observed` collects them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np


@dataclass(frozen=True)
class Ending:
    """A sample of unequal lengths whose tokens agree as far as both go. Pairs are (baseline, candidate)."""

    step: int
    sample: int
    sent: int  # tokens of the prompt
    seen: tuple[int, int]  # tokens of the prompt that each engine saw
    lengths: tuple[int, int]
    finish: tuple[str, str]  # "" where it was not recorded
    shorter_last: int  # last token of the shorter response; -1 where it is empty
    longer_next: int  # next token of the longer response
    longer_last: int

    @property
    def missing(self) -> int:
        """Return how many tokens the shorter response has less."""
        return abs(self.lengths[0] - self.lengths[1])


class Reason(NamedTuple):
    """A sample with equal tokens and different finish reasons, (baseline, candidate). For one run alone: (its reason,
    "").
    """

    step: int
    sample: int
    length: int
    last: int  # token
    finish: tuple[str, str]


@dataclass(frozen=True)
class Stops:
    """The tokens at which the samples of one side end."""

    at: Mapping[int, int]  # token -> samples that stopped at it
    inner: np.ndarray  # id -> times a response went on after it
    contradicted: tuple[Reason, ...]  # samples of an audit whose finish reason their last token contradicts


@dataclass(frozen=True)
class StopConditions:
    """Where the samples of both runs end, and why."""

    endings: tuple[Ending, ...] = ()  # samples of unequal lengths
    reasons: tuple[Reason, ...] = ()  # samples with different finish reasons
    given_up: Mapping[int, int] = field(default_factory=dict)  # step -> samples that both engines aborted
