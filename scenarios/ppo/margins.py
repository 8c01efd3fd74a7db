"""How surely the learner would have drawn each trained token: its score less the best other's.

Coupled sampling draws the token of the largest perturbed logit, greedy sampling that of the largest logit. Where two
engines part, the margin says whether rounding could have turned the draw. Native sampling has no such number: NaN.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from scenarios.ppo.batches import Sample
from scenarios.rollout.coupling import EDGE, Draw, perturbed
from scenarios.settings import Scenario

CHUNK = 256  # positions at a time: float64 scores and noise over a vocabulary of 150,000 take 0.3 GiB each


class Margins:
    """Margins under the sampling of `scenario`; `eos`: the model's end-of-sequence ids."""

    def __init__(self, scenario: Scenario, eos: int | list[int] | None, *, half: bool = False) -> None:
        self._half = half
        sampling = scenario.sampling
        model = () if eos is None or sampling.ignore_eos else ((eos,) if isinstance(eos, int) else tuple(eos))
        self._ends = tuple(sorted({*model, *sampling.stop_token_ids})) if sampling.min_tokens else ()
        self._mode, self._seed, self._sampling = scenario.rollout.mode, scenario.seed, sampling

    @torch.no_grad()
    def __call__(self, sample: Sample, logits: Tensor) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
        """Margin in nats of logits / T, and the best other token, at each position of the response.

        logits: [response, vocabulary]. A token that no filter leaves has -inf; without any other token left, the
        margin is inf and the runner-up -1. `half`: where rounding in half precision decides on which side of the edge
        of a filter the best token lies, the margin is inf as well, and the runner-up what is drawn on the other side.
        """
        length = len(sample.response)
        margin = np.full(length, np.nan, dtype=np.float32)
        runner_up = np.full(length, -1, dtype=np.int32)
        if self._mode == "native":
            return margin, runner_up
        strict = torch.are_deterministic_algorithms_enabled()
        # CUDA has no deterministic cumsum, which top-p needs; nothing trains on a margin.
        torch.use_deterministic_algorithms(False)
        try:
            for start in range(0, length, CHUNK):
                part = slice(start, min(start + CHUNK, length))
                positions = torch.arange(part.start, part.stop, device=logits.device)
                scores = self._scores(logits[part], sample.number, positions)
                target = torch.tensor(sample.response[part], device=logits.device)[:, None]
                instead = self._instead(logits[part], sample.number, positions, target[:, 0])
                own = scores.gather(-1, target)[:, 0]
                other, which = scores.scatter(-1, target, float("-inf")).max(dim=-1)
                margin[part] = (own - other).masked_fill(instead >= 0, float("inf")).cpu().numpy()
                which = which.masked_fill(other == float("-inf"), -1)
                runner_up[part] = torch.where(instead >= 0, instead, which).cpu().numpy()
        finally:
            torch.use_deterministic_algorithms(strict)
        return margin, runner_up

    def _instead(self, logits: Tensor, sample: int, positions: Tensor, drawn: Tensor) -> Tensor:
        """What is drawn in place of these tokens on the other side of the edge of a filter; -1 where no edge is so near
        that the rounding of an engine decides."""
        s = self._sampling
        if not self._half or self._mode != "coupled" or not (s.top_k > 0 or s.top_p < 1.0 or s.min_p > 0.0):
            return torch.full_like(drawn, -1)
        slack = EDGE / s.temperature
        sure, possible = (self._scores(logits, sample, positions, slack=by).argmax(dim=-1) for by in (-slack, slack))
        other = torch.where(drawn == sure, possible, sure)
        return other.masked_fill((sure == possible) | ((drawn != sure) & (drawn != possible)), -1)

    def _scores(self, logits: Tensor, sample: int, positions: Tensor, slack: float = 0.0) -> Tensor:
        s = self._sampling
        if self._mode == "coupled":
            draw = Draw(self._seed, sample, 0, s.temperature, s.top_k, s.top_p, s.min_p, s.min_tokens, self._ends)
            return perturbed(logits, draw, positions, slack)
        scores = logits.double()
        if self._ends:
            early = (positions < s.min_tokens).nonzero()
            scores[early, torch.tensor(self._ends, device=logits.device)] = float("-inf")
        return scores
