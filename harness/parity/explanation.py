"""A cause with the divergences that it explains."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from reports.model import Cause

# Kinds of divergence that an engine can show in its rollouts; `{side}` is the side at fault.
ROLLOUT = ("flip", "logprob", "length", "finish", "learner:{side}", "choice:{side}", "not finite:{side}")
NATIVE = ("native", "native learner:{side}", "collision:{side}")


@dataclass(frozen=True)
class Explanation:
    """`covers(kind, items)`: which of these (step, sample) divergences the cause explains."""

    cause: Cause
    kinds: tuple[str, ...]
    where: Callable[[np.ndarray], np.ndarray] = field(default=lambda items: np.ones(len(items), bool))

    def covers(self, kind: str, items: np.ndarray) -> np.ndarray:
        return self.where(items) if kind in self.kinds else np.zeros(len(items), bool)


def kinds_of(patterns: tuple[str, ...], side: str) -> tuple[str, ...]:
    return tuple(pattern.format(side=side) for pattern in patterns)


def among(affected: set[Any]) -> Callable[[np.ndarray], np.ndarray]:
    return lambda items: np.array([tuple(item) in affected for item in items.tolist()], bool)
