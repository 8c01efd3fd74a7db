"""A coupled draw with a planted fault: extra noise, a penalty, or other log-probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch

from scenarios.engines.coupling import Draw, perturbed, uniform
from scenarios.engines.penalties import Occurred, penalised
from scenarios.engines.sampling import filtered


@dataclass(frozen=True)
class PlantedDraw(Draw):
    """A coupled draw with a fault.

    `jitter`: nats of uniform noise on logits/T, the same at every call. `second`: take the second best token once in
    this many tokens; 0: never. `reported`: the log-probabilities that are reported. "tempered": at T; "tempered:T":
    at another temperature; "filtered": renormalised over what top-k, top-p and min-p keep; "penalised": after the
    penalties; "top": of the most probable token in place of the drawn one. `repetition`, `presence`, `frequency`:
    penalties on tokens that occurred, of the embedded engine, as in `scenarios.engines.penalties.penalised`.
    """

    jitter: float = 0.0
    reported: str = "raw"
    second: int = 0
    repetition: float = 1.0
    presence: float = 0.0
    frequency: float = 0.0

    @property
    def reports_adjusted(self) -> bool:
        return self.reported == "penalised"

    def chosen(self, logits: torch.Tensor, position: int) -> torch.Tensor:
        places = torch.tensor([position], device=logits.device)
        scores = perturbed(logits, self, places)
        if self.jitter:
            samples = torch.full_like(places, self.sample)
            scores = scores + self.jitter * (2.0 * uniform(self.seed + 1, samples, places, logits.shape[-1]) - 1.0)
        best = scores.argmax(dim=-1)
        if not self._takes_second(position):
            return best
        other_scores = scores.scatter(-1, best[:, None], float("-inf"))
        return torch.where(other_scores.isfinite().any(), other_scores.argmax(dim=-1), best)

    def adjusted(self, logits: torch.Tensor, prompt: Sequence[int], output: Sequence[int]) -> torch.Tensor:
        if (self.repetition, self.presence, self.frequency) == (1.0, 0.0, 0.0):
            return logits
        start = len(prompt) - self.offset
        occurred = Occurred.before(prompt[:start], [*prompt[start:], *output], logits.shape[-1], logits.device)
        return penalised(logits, occurred, self.repetition, self.presence, self.frequency)

    def logprobs(self, logits: torch.Tensor) -> torch.Tensor | None:
        if self.reported in ("raw", "penalised"):
            return None
        if self.reported == "filtered":
            return torch.log_softmax(filtered(logits, self), dim=-1)
        if self.reported == "top":
            table = torch.log_softmax(logits.float(), dim=-1)
            return table.amax(dim=-1, keepdim=True).expand_as(table)
        temperature = float(self.reported.partition(":")[2] or self.temperature)
        return torch.log_softmax(logits.float() / temperature, dim=-1)

    def settled(self, probabilities: torch.Tensor, step: int) -> torch.Tensor:
        if not self._takes_second(step):
            return probabilities
        return torch.zeros_like(probabilities).scatter(-1, probabilities.topk(2).indices[1:], 1.0)

    def _takes_second(self, position: int) -> bool:
        return self.second > 0 and (self.sample + position) % self.second == 0


OWN = frozenset(field.name for field in fields(PlantedDraw)) - frozenset(field.name for field in fields(Draw))


def draw(**values: Any) -> Draw:
    """Return the draw with these fields: a planted one only where a planted field is among them."""
    return PlantedDraw(**values) if OWN & set(values) else Draw(**values)
