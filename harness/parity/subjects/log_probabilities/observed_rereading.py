"""What is left of a difference when the recorded numbers are read in another way (`readings`)."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np


@dataclass
class Readings:
    """One row per sample of each step in which a comparison diverges; samples that agree are rows as well.

    step, sample, tokens (compared), other (positions with another token), beyond (the tolerance), first, last
    (positions of the first and the last beyond; -1 without), before, after (tokens compared ahead of `first` and behind
    `last`), prompt (its tokens, -1 unknown), cached (of them, -1 unknown), and for each reading NAME `NAME compared`
    and `NAME left`.
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
        """(step, sample) of every row."""
        return np.stack([self["step"], self["sample"]], axis=1).astype(np.int64)
