"""The table of what each re-reading leaves (`observed_readings` fills it, `explain` reads it)."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np


@dataclass
class Readings:
    """One row for each sample of the steps in which a comparison diverges, samples that agree included. Columns:

    - step, sample.
    - tokens: how many were compared; other: positions with different tokens; beyond: tokens beyond the tolerance.
    - first, last: positions of the first and last token beyond it; -1 without one.
    - before, after: compared tokens before `first` and after `last`.
    - prompt: tokens of the prompt; cached: those of them in the prefix cache; -1 where unknown.
    - `NAME compared`, `NAME left` for each reading NAME.
    """

    parts: dict[str, list[np.ndarray]] = field(default_factory=dict)

    def add(self, columns: dict[str, np.ndarray]) -> None:
        for name, values in columns.items():
            self.parts.setdefault(name, []).append(values)

    def __getitem__(self, name: str) -> np.ndarray:
        parts = self.parts.get(name)
        if not parts:
            return np.zeros(0)
        if len(parts) > 1:
            parts[:] = [np.concatenate(parts)]
        return parts[0]

    def __contains__(self, name: str) -> bool:
        return name in self.parts

    @property
    def keys(self) -> np.ndarray:
        """Return (step, sample) of every row."""
        return np.stack([self["step"], self["sample"]], axis=1).astype(np.int64)
