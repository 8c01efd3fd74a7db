"""Makes rectangular batches of ragged samples for a forward pass: padded (one sample per row) or packed (several).

Padding is on the right, where causal attention never looks, so padded rows need no mask. Packed rows get restarting
positions and a block-diagonal mask. Both give the same numbers up to rounding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Sample:
    """One prompt and its response, both as token ids.

    `number`: the sample's number in the run. `drawn`: what the engine itself chose along the response, where it was
    guided; it may be shorter than the response.
    """

    number: int
    prompt: tuple[int, ...]
    response: tuple[int, ...]
    drawn: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.prompt) + len(self.response)


@dataclass(frozen=True)
class Batch:
    """Inputs of one forward pass, and where each response token is predicted.

    ids: int64 [rows, length]. mask: additive [rows, 1, length, length]. positions: int64 [rows, length]. Both are
    None where padded. row, column, target: int64 [tokens], the response tokens of all samples in order; token i is
    predicted at (row[i], column[i]). lengths: response tokens of each sample. real_tokens: without padding. longest:
    tokens of the longest sample.
    """

    ids: Tensor
    mask: Tensor | None
    positions: Tensor | None
    row: Tensor
    column: Tensor
    target: Tensor
    lengths: tuple[int, ...]
    real_tokens: int
    longest: int

    @property
    def padded_tokens(self) -> int:
        """Return the tokens of the rectangle, padding included."""
        return self.ids.numel()

    def inputs(self) -> dict[str, Any]:
        """Return the arguments of a Transformers model."""
        if self.mask is None:
            return {"input_ids": self.ids}
        return {"input_ids": self.ids, "attention_mask": self.mask, "position_ids": self.positions}

    def split(self, values: Tensor) -> list[Tensor]:
        """Split values per response token [tokens, ...] into one tensor per sample."""
        return list(values.split(list(self.lengths)))


def make(
    samples: Sequence[Sample], *, pad: int, packing: bool, device: str, dtype: torch.dtype = torch.float32
) -> Batch:
    """Make a batch of `samples`, padded with the id `pad`. `dtype`: of the model, for the mask of packed rows."""
    longest = max(map(len, samples))
    places = _packed(samples, longest) if packing else [(row, 0) for row in range(len(samples))]
    rows = 1 + max(row for row, _ in places)
    ids = torch.full((rows, longest), pad)
    segment = torch.full((rows, longest), -1)
    positions = torch.zeros((rows, longest), dtype=torch.int64)
    row_of: list[int] = []
    column_of: list[int] = []
    target: list[int] = []
    for number, (sample, (row, start)) in enumerate(zip(samples, places, strict=True)):
        end = start + len(sample)
        # Each sample attends to its own segment only, with positions from 0.
        ids[row, start:end] = torch.tensor(sample.prompt + sample.response)
        segment[row, start:end] = number
        positions[row, start:end] = torch.arange(len(sample))
        # A token's log-probability is in the logits of the position before it.
        first = start + len(sample.prompt) - 1
        row_of += [row] * len(sample.response)
        column_of += range(first, first + len(sample.response))
        target += sample.response
    return Batch(
        ids=ids.to(device),
        mask=_block_diagonal(segment, dtype).to(device) if packing else None,
        positions=positions.to(device) if packing else None,
        row=torch.tensor(row_of, device=device),
        column=torch.tensor(column_of, device=device),
        target=torch.tensor(target, device=device),
        lengths=tuple(len(sample.response) for sample in samples),
        real_tokens=sum(map(len, samples)),
        longest=longest,
    )


def micro(samples: Sequence[Any], size: int) -> Iterator[slice]:
    """Yield slices of at most `size` samples, in order."""
    for start in range(0, len(samples), size):
        yield slice(start, start + size)


def _packed(samples: Sequence[Sample], capacity: int) -> list[tuple[int, int]]:
    """Return (row, start) of each sample by first-fit decreasing: longest first, ties in the samples' order."""
    used: list[int] = []
    places: list[tuple[int, int]] = [(0, 0)] * len(samples)
    for index in sorted(range(len(samples)), key=lambda index: -len(samples[index])):
        size = len(samples[index])
        row = next((row for row, filled in enumerate(used) if filled + size <= capacity), len(used))
        if row == len(used):
            used.append(0)
        places[index] = (row, used[row])
        used[row] += size
    return places


def _block_diagonal(segment: Tensor, dtype: torch.dtype) -> Tensor:
    """Return an additive mask: a token sees earlier ones of its own sample. Padding sees itself, or its row would be
    NaN.
    """
    length = segment.shape[1]
    same_sample = segment[:, :, None] == segment[:, None, :]
    visible = same_sample & torch.ones(length, length).tril().bool() & (segment >= 0)[:, :, None]
    visible |= torch.eye(length).bool()
    return torch.zeros(visible.shape, dtype=dtype).masked_fill(~visible, torch.finfo(dtype).min)[:, None]
