"""The results of comparing both learners: their updates, and what they made of the same tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from harness.parity.subjects.ranks.observed_faults import What
from reports.model import Finding


class OtherDivisor(NamedTuple):
    """Gradients of equal weights and batches that another divisor of the loss explains.

    `side`: the run that does not divide by the mini-batch's tokens; "" where that is unknown. `what`: what the divisor
    depends on.
    """

    side: str
    text: str
    what: str = What.DIVISOR


@dataclass(frozen=True)
class Learners:
    """Learner against learner: the steps of each run's updates, those with equal results, and where they begin to
    differ.
    """

    updates: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    equal: tuple[int, ...] = ()
    parted: int | None = None  # the step after which they differ, with at most one of the reasons below
    cuts: tuple[Finding, ...] = ()  # settings that cut the same batch otherwise
    norms: str = ""  # how far gradients differ in the update after which such a setting makes the learners differ
    confounded: str = ""
    followed: int | None = None  # they trained on other tokens
    reordered: int | None = None  # they took the samples in another order
    scaled: OtherDivisor | None = None
    losses_differ: Mapping[str, int] = field(default_factory=dict)  # loss -> first step with other last digits


@dataclass(frozen=True)
class Experience:
    """What the learners made of the same tokens, by column."""

    other_tokens: tuple[int, ...] = ()  # steps that were trained on other tokens
    not_identical: Mapping[str, int] = field(default_factory=dict)  # the first step without bit-identical values
    apart: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # largest |Δ| within the allowed one, and it
    differing: Mapping[str, np.ndarray] = field(default_factory=dict)  # column -> (step, sample) beyond what is allowed
    untested: Mapping[str, str] = field(default_factory=dict)  # why no mean difference was tested
