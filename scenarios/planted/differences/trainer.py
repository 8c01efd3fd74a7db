"""Planted faults of the trainer, at its own seam: what it sends in a weight sync, what it makes of log-probabilities,
how it shares samples among its ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

EVERY = "*"  # among the tensors that are sent otherwise: all of them, as the sync before had to send them


@dataclass(frozen=True)
class TrainerPlants:
    """What is wrong with one trainer; the default is a sound one.

    omit_tensors: {weight version: names left out of that sync}. omit_from: the first version from which `omit_names`
    are left out of every sync. alter: {tensor: "revision" | "halves"}, sent otherwise than it is from version
    `alter_from` on, see `altered`. behind_from: from the sync after this version's on each sends what the one before it
    had to send. scale: the actor's log-probabilities are multiplied by it. shift: they stand so many positions late.
    first_share: of the samples, what the first rank gets (0 to 1). first_step: earlier steps are sound.
    """

    omit_tensors: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    omit_from: int = -1
    omit_names: tuple[str, ...] = ()
    alter: Mapping[str, str] = field(default_factory=dict)
    alter_from: int = 0
    behind_from: int = -1
    scale: float = 1.0
    shift: int = 0
    first_share: float = 0.0
    first_step: int = 0

    def omitted(self, version: int) -> tuple[str, ...]:
        """Tensors that the sync of this weight version leaves out."""
        later = self.omit_names if 0 <= self.omit_from <= version else ()
        return (*self.omit_tensors.get(version, ()), *later)

    def changed(self, version: int) -> dict[str, str]:
        """Tensors that the sync of this weight version sends otherwise than they are."""
        behind = {EVERY: "behind"} if 0 <= self.behind_from <= version else {}
        return behind | (dict(self.alter) if version >= self.alter_from else {})

    def logprobs(self, rows: list[Any], step: int) -> list[Any]:
        """What the trainer takes for the actor's log-probabilities (arrays, one a sample)."""
        if step < self.first_step or (self.scale == 1.0 and not self.shift):
            return rows
        import numpy as np

        return [(np.roll(row, self.shift) * np.float32(self.scale)).astype(row.dtype) for row in rows]


def altered(tensor: Any, how: str) -> Any:
    """Another tensor of the same shape: a `revision` has noise of a twentieth of its size, the rows of `halves` changed
    places, so that every norm stays."""
    import torch

    if how == "halves":
        return tensor.detach().roll(tensor.shape[0] // 2, dims=0)
    noise = torch.randn(tensor.shape, generator=torch.Generator().manual_seed(0)).to(tensor)
    return tensor.detach() + 0.05 * tensor.detach().std() * noise
