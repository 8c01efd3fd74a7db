"""Penalties on tokens that occurred before: what each does to logits, and which tokens it covers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from scenarios.engines import canonical

# Penalty -> the value that switches it off, in the order of the arguments of `penalised`.
PENALTIES: dict[str, float] = {penalty.name: penalty.off for penalty in canonical.PENALTIES}


@dataclass(frozen=True)
class Occurred:
    """How often each token occurred before a position.

    `output`: count in the response, [n, vocabulary]. `prompt`: whether it occurs in the prompt, bool [n, vocabulary].
    """

    prompt: Tensor
    output: Tensor

    def part(self, rows: slice) -> Occurred:
        return Occurred(self.prompt[rows], self.output[rows])

    def to(self, device: Any) -> Occurred:
        return Occurred(self.prompt.to(device), self.output.to(device))

    @staticmethod
    def of(prompt: Sequence[int], response: Sequence[int], rows: int, vocabulary: int) -> Occurred:
        """Return the counts at each of the first `rows` positions of one response."""
        first = Occurred.before(prompt, (), vocabulary)
        output = first.output.repeat(rows, 1)
        for position, token in enumerate(response[: max(rows - 1, 0)]):
            output[position + 1 :, token] += 1
        return Occurred(first.prompt.expand(rows, -1), output)

    @staticmethod
    def joined(parts: Sequence[Occurred]) -> Occurred:
        return Occurred(torch.cat([part.prompt for part in parts]), torch.cat([part.output for part in parts]))

    @staticmethod
    def before(prompt: Sequence[int], drawn: Sequence[int], vocabulary: int, device: Any = "cpu") -> Occurred:
        """Return the counts at the one position that follows these tokens."""
        in_prompt = torch.bincount(torch.tensor(prompt, dtype=torch.int64), minlength=vocabulary)[:vocabulary] > 0
        output = torch.bincount(torch.tensor(drawn, dtype=torch.int64), minlength=vocabulary)[:vocabulary]
        return Occurred(in_prompt[None].to(device), output[None].to(device))


def penalised(
    logits: Tensor,
    occurred: Occurred,
    repetition_penalty: float = 1.0,
    presence_penalty: float = 0.0,
    frequency_penalty: float = 0.0,
    *,
    blind: bool = False,
) -> Tensor:
    """Return logits [n, vocabulary] with penalties applied as vLLM and SGLang do.

    A repetition penalty divides positive logits and multiplies negative ones, for every token of prompt and output. A
    presence penalty is subtracted once from every token of the output, a frequency penalty once per occurrence.
    `blind`: the repetition penalty covers the output only, as SGLang's does.
    """
    in_output = occurred.output > 0
    if repetition_penalty != 1.0:
        less = torch.where(logits > 0, logits / repetition_penalty, logits * repetition_penalty)
        logits = torch.where(in_output if blind else in_output | occurred.prompt, less, logits)
    if presence_penalty:
        logits = logits - presence_penalty * in_output
    if frequency_penalty:
        logits = logits - frequency_penalty * occurred.output
    return logits
