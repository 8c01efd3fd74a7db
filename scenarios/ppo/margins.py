"""Margins: how clearly the learner would have drawn each trained token; its score minus the best other token's.

Coupled sampling draws the token with the largest perturbed logit, greedy sampling the one with the largest logit.
Where two engines draw different tokens, the margin says whether rounding could have turned the draw. Native sampling
has no such number: NaN.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from scenarios.engines.canonical import filters
from scenarios.engines.coupling import EDGE, Draw, perturbed
from scenarios.engines.sampling import barred, ids_of
from scenarios.ppo.batches import Sample
from scenarios.settings import Sampling, Scenario

# Nats of logits, beyond `EDGE`, by which the edge of a filter may be shifted. The largest is twice the largest
# difference of any token in half precision (`harness.parity.subjects.precision.observed_floor.EXTREME_HALF` times its
# cap).
REACHES = (0.05, 0.1, 0.2, 0.4)
CHUNK = 256  # positions at a time: float64 scores and noise over a vocabulary of 150,000 take 0.3 GiB each


@dataclass(frozen=True)
class SampleMargins:
    """The margins of one sample, one number per position.

    `margin`: in nats of logits / T. `runner_up`: the best other token. The next two are for half precision with
    filters, else NaN. `edge`: by how many nats of logits the edges of the filters must shift for this token to be
    drawn, the least of `REACHES`; 0 where the margin says that it is drawn anyway, NaN where none of them suffices.
    `drawn_edge`: the same for the token that a guided engine chose instead; NaN where it chose this token.
    """

    margin: NDArray[np.float32]
    runner_up: NDArray[np.int32]
    edge: NDArray[np.float32]
    drawn_edge: NDArray[np.float32]


def end_ids(eos: int | list[int] | None, sampling: Sampling) -> tuple[int, ...]:
    """Return the ids that end a sample. `eos`: the model's own, of its generation_config.json."""
    own = frozenset[int]() if sampling.ignore_eos else ids_of(eos)
    return tuple(sorted({*own, *sampling.stop_token_ids}))


class Margins:
    """Margins under the sampling of `scenario`. `eos`: the model's end-of-sequence ids. `half`: the model is in half
    precision.
    """

    def __init__(self, scenario: Scenario, eos: int | list[int] | None, *, half: bool = False) -> None:
        self._half = half
        sampling = scenario.sampling
        self._ends = end_ids(eos, sampling) if sampling.min_tokens else ()
        self._mode, self._seed, self._sampling = scenario.rollout.mode, scenario.seed, sampling

    @torch.no_grad()
    def __call__(self, sample: Sample, logits: Tensor) -> SampleMargins:
        """Return the margins of one sample, at each position of the response.

        `logits`: [response, vocabulary]. A token that the filters remove has -inf. Where no other token is left, the
        margin is inf and the runner-up -1. In half precision, the margin is also inf where rounding decides on which
        side of a filter's edge the best token is; then the runner-up is the token that is drawn on the other side.
        """
        length = len(sample.response)
        margin = np.full(length, np.nan, dtype=np.float32)
        runner_up = np.full(length, -1, dtype=np.int32)
        edge = np.full(length, np.nan, dtype=np.float32)
        drawn_edge = np.full(length, np.nan, dtype=np.float32)
        rows = SampleMargins(margin, runner_up, edge, drawn_edge)
        if self._mode == "native":
            return rows
        strict = torch.are_deterministic_algorithms_enabled()
        # CUDA has no deterministic cumsum, which top-p needs. Nothing trains on a margin, so determinism may be off
        # here.
        torch.use_deterministic_algorithms(False)
        try:
            for start in range(0, length, CHUNK):
                part = slice(start, min(start + CHUNK, length))
                positions = torch.arange(part.start, part.stop, device=logits.device)
                scores = self._scores(logits[part], sample.number, positions)
                target = torch.tensor(sample.response[part], device=logits.device)[:, None]
                instead = self._instead(logits[part], sample.number, positions, target[:, 0])
                chosen_scores = scores.gather(-1, target)[:, 0]
                rival_scores, which = scores.scatter(-1, target, float("-inf")).max(dim=-1)
                margin[part] = (chosen_scores - rival_scores).masked_fill(instead >= 0, float("inf")).cpu().numpy()
                which = which.masked_fill(rival_scores == float("-inf"), -1)
                runner_up[part] = torch.where(instead >= 0, instead, which).cpu().numpy()
                edge[part] = self._edges(logits[part], sample.number, positions, target[:, 0], margin[part])
                drawn_edge[part] = self._drawn(logits[part], sample, positions)
        finally:
            torch.use_deterministic_algorithms(strict)
        return rows

    def _edges(
        self, logits: Tensor, sample: int, positions: Tensor, drawn: Tensor, margin: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        edge = np.where(margin >= 0.0, 0.0, np.nan).astype(np.float32)
        for reach in REACHES if self._edged() else ():
            undecided = np.flatnonzero(np.isnan(edge))
            if not len(undecided):
                break
            at, slack = torch.as_tensor(undecided, device=logits.device), reach / self._sampling.temperature
            # The token must be among those that the wider filter keeps, and no token that surely stays may beat it by
            # more than rounding.
            drawn_scores = self._scores(logits[at], sample, positions[at], slack=slack).gather(-1, drawn[at][:, None])[
                :, 0
            ]
            sure = self._scores(logits[at], sample, positions[at], slack=-slack).amax(dim=-1)
            edge[undecided[(drawn_scores + slack >= sure).cpu().numpy()]] = reach
        return edge

    def _drawn(self, logits: Tensor, sample: Sample, positions: Tensor) -> NDArray[np.float32]:
        """Return the edge of what the engine chose, where that is not the response's token; NaN elsewhere."""
        edge = np.full(len(positions), np.nan, dtype=np.float32)
        start, stop = int(positions[0]), int(positions[-1]) + 1
        drawn = np.array(sample.drawn[start:stop], dtype=np.int64)
        differs = drawn != np.array(sample.response[start:stop], dtype=np.int64)[: len(drawn)]
        at = np.flatnonzero(differs & (drawn >= 0) & (drawn < logits.shape[-1]))
        if len(at) and self._edged():
            index = torch.as_tensor(at, device=logits.device)
            token = torch.as_tensor(drawn[at], device=logits.device)
            unknown = np.full(len(at), np.nan, dtype=np.float32)
            edge[at] = self._edges(logits[index], sample.number, positions[index], token, unknown)
        return edge

    def _edged(self) -> bool:
        """Whether rounding shifts the edges of filters: in coupled draws of half precision with filters."""
        return self._half and self._mode == "coupled" and filters(self._sampling)

    def _instead(self, logits: Tensor, sample: int, positions: Tensor, drawn: Tensor) -> Tensor:
        """Return the token that is drawn instead on the other side of a filter's edge; -1 where no edge is close
        enough.
        """
        if not self._edged():
            return torch.full_like(drawn, -1)
        slack = EDGE / self._sampling.temperature
        sure, possible = (self._scores(logits, sample, positions, slack=by).argmax(dim=-1) for by in (-slack, slack))
        alternative = torch.where(drawn == sure, possible, sure)
        return alternative.masked_fill((sure == possible) | ((drawn != sure) & (drawn != possible)), -1)

    def _scores(self, logits: Tensor, sample: int, positions: Tensor, slack: float = 0.0) -> Tensor:
        s = self._sampling
        if self._mode == "coupled":
            draw = Draw.of(s, seed=self._seed, sample=sample, ends=self._ends)
            return perturbed(logits, draw, positions, slack)
        return barred(logits.double(), positions, s.min_tokens, self._ends)
