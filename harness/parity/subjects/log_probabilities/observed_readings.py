"""The table of what each re-reading leaves (`observed_rereading` fills it, `explain` reads it)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Readings:
    """One row for each sample of the steps in which a comparison diverges, samples that agree included. Columns:

    - step, sample.
    - tokens: how many were compared; other: positions with different tokens; beyond: tokens beyond the tolerance.
    - first, last: positions of the first and last token beyond it; -1 without one.
    - before, after: compared tokens before `first` and after `last`.
    - prompt: tokens of the prompt; cached: those of them in the prefix cache; -1 where unknown.
    - `NAME compared`, `NAME left` for each reading NAME.
    """

    columns: Mapping[str, np.ndarray]

    @staticmethod
    def joined(steps: Iterable[Mapping[str, np.ndarray]]) -> Readings:
        """Return the readings of several steps, each given by its columns."""
        parts: dict[str, list[np.ndarray]] = {}
        for columns in steps:
            for name, values in columns.items():
                parts.setdefault(name, []).append(values)
        return Readings({name: np.concatenate(values) for name, values in parts.items()})

    def __getitem__(self, name: str) -> np.ndarray:
        return self.columns.get(name, np.zeros(0))

    def __contains__(self, name: str) -> bool:
        return name in self.columns

    @property
    def keys(self) -> np.ndarray:
        """Return (step, sample) of every row."""
        return np.stack([self["step"], self["sample"]], axis=1).astype(np.int64)
