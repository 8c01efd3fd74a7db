"""Records what the updates of one rank did, in a few numbers each.

The sum of a gradient's elements is linear, so that of the gradient which all ranks apply is the sum of the ranks' own
sums. The sum of all weights is equal on every rank after every update, to the last bit.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from probes.format import Flat
from probes.install import Recorder
from scenarios.ppo.role import MiniBatch


class UpdateLog:
    """The updates of one step on this rank. `names`: of the parameters whose gradients are summed across ranks."""

    def __init__(self, names: Sequence[str], weights: Sequence[Tensor]) -> None:
        self._names, self._parameters = list(names), weights
        self._clear()

    def _clear(self) -> None:
        self._own: list[float] = []
        self._size: list[float] = []
        self._summed: list[float] = []
        self._norm: list[float] = []
        self._weights: list[float] = []

    def before(self, gradients: Sequence[Tensor]) -> None:
        """Note the gradients of this rank alone."""
        if not self._weights:
            self._weights.append(self._total())
        self._own += _sums(gradients)
        self._size += _sums([gradient.abs() for gradient in gradients])

    def after(self, gradients: Sequence[Tensor]) -> None:
        """Note the same gradients as this rank will apply them."""
        self._summed += _sums(gradients)

    def applied(self, norm: float) -> None:
        """Note that the update was made. `norm`: of the gradients before clipping."""
        self._norm.append(norm)
        self._weights.append(self._total())

    def record(self, recorder: Recorder, role: str, step: int, shares: Sequence[MiniBatch], digest: str) -> None:
        """Record the step's updates, one for each of `shares`, and the digest of the resulting weights."""
        columns = {"own": self._own, "size": self._size, "summed": self._summed, "norm": self._norm,
                   "weights": self._weights}  # fmt: skip
        recorder.frame(
            "updates", step=step,
            fields={
                "role": role, "parameters": self._names, "digest": digest,
                "samples": [[sample.number for sample in share.samples] for share in shares],
                "tokens": [sum(len(sample.response) for sample in share.samples) for share in shares],
                "divisors": [share.count for share in shares],
            },
            arrays={name: Flat.of(values, "f8") for name, values in columns.items()},
        )  # fmt: skip
        self._clear()

    def _total(self) -> float:
        return sum(_sums(self._parameters))


def _sums(tensors: Sequence[Tensor]) -> list[float]:
    sums: list[float] = torch.stack([tensor.detach().sum(dtype=torch.float64) for tensor in tensors]).tolist()
    return sums
