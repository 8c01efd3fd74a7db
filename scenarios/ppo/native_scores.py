"""The learner's reading of native samples: what each drawn token is worth under what the sampler was asked to do.

An engine's own sampler says which token it took and one number about it. The learner knows the whole distribution at
each position, so it can hold the draws against it. Under the right sampler the surprisal of a token less the entropy of
its position has mean zero and a known variance (a martingale difference), and the mass that stands before the token in
the order of probability, plus a random share of its own, is uniform (Rosenblatt 1952). One engine's samples are
enough to say that this engine does not draw what was asked.

The canonical order is the one of `coupling.filtered`: penalty, temperature, top-k, top-p over the renormalised top-k,
min-p. `Hypothesis` says otherwise where a sampler may mean something else.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from scenarios.engines.penalties import PENALTIES, Occurred, penalised
from scenarios.ppo.batches import Sample
from scenarios.ppo.margins import CHUNK
from scenarios.settings import Sampling

NAMES = ("tempered_logprob", "processed_logprob", "entropy", "varentropy", "mass_before", "outside")
JOINT = ("joint_logprob", "outside_joint")
BLIND = "blind_logprob"
NO_PENALTY = tuple(PENALTIES.values())


@dataclass(frozen=True)
class Hypothesis:
    """What a sampler may have done. `joint`: top-p over the unfiltered mass beside top-k, as SGLang does. `blind`: the
    repetition penalty covers the output only, as SGLang's does. `presence`, `frequency`: penalties that nobody asks for
    here, but a default may bring. `passed`: the share of tokens at which the second best one is taken.
    """

    sampling: Sampling
    joint: bool = False
    blind: bool = False
    presence: float = 0.0
    frequency: float = 0.0
    passed: float = 0.0


@dataclass(frozen=True)
class Reading:
    """One number a token, float64. `processed`: log-probability under the hypothesis, -inf outside of its support.

    `outside`: the smallest error in every log-probability
    that could have let the token in, nats; 0 inside. `second`: log-probability of the second best token, `is_second`:
    whether it was drawn.
    """

    tempered: Tensor
    processed: Tensor
    entropy: Tensor
    varentropy: Tensor
    before: Tensor
    outside: Tensor
    second: Tensor
    is_second: Tensor

    def likelihood(self, passed: float) -> Tensor:
        """Log-probability of each token where so large a share is the second best one, whatever it is."""
        if not passed:
            return self.processed
        return torch.log((1 - passed) * self.processed.exp() + passed * self.is_second)

    def moments(self, passed: float) -> tuple[Tensor, Tensor]:
        """Mean and variance of the surprisal of each position under the same."""
        away = torch.where(self.second.isfinite(), -self.second, 0.0)
        mean = (1 - passed) * self.entropy + passed * away
        square = (1 - passed) * (self.varentropy + self.entropy**2) + passed * away**2
        return mean, (square - mean**2).clamp(min=0.0) if passed else self.varentropy


@dataclass(frozen=True)
class Drawn:
    """Drawn tokens of any samples, a row each: logits [n, vocabulary], the model's own; target [n].

    `early`: how many tokens of its response came before, [n]. `occurred`: the tokens that penalties cover; None where
    none is read.
    """

    logits: Tensor
    target: Tensor
    early: Tensor
    occurred: Occurred | None = None

    @staticmethod
    def of(held: list[tuple[Sample, Tensor]], *, penalty: bool) -> Drawn:
        """Samples with the logits of their responses, [response, vocabulary] each."""
        device = held[0][1].device
        logits = torch.cat([one for _, one in held])
        target = torch.tensor([token for sample, _ in held for token in sample.response], device=device)
        early = torch.cat([torch.arange(len(sample.response), device=device) for sample, _ in held])
        if not penalty:
            return Drawn(logits, target, early)
        parts = [Occurred.of(sample.prompt, sample.response, *rows.shape) for sample, rows in held]
        return Drawn(logits, target, early, Occurred.joined(parts).to(device))

    def part(self, rows: slice) -> Drawn:
        """Some of the rows."""
        occurred = None if self.occurred is None else self.occurred.part(rows)
        return Drawn(self.logits[rows], self.target[rows], self.early[rows], occurred)


def punished(drawn: Drawn, hypothesis: Hypothesis, ends: tuple[int, ...]) -> Tensor:
    """Logits after what comes before the temperature: the penalty, and `ends` masked until `min_tokens` were drawn.

    float64, [n, vocabulary].
    """
    s, scores = hypothesis.sampling, drawn.logits.double()
    penalties = (s.repetition_penalty, hypothesis.presence, hypothesis.frequency)
    if penalties != NO_PENALTY:
        assert drawn.occurred is not None, "rows without what a penalty covers"
        scores = penalised(scores, drawn.occurred, *penalties, blind=hypothesis.blind)
    if s.min_tokens and ends:
        masked = torch.zeros_like(scores[:1], dtype=torch.bool)
        masked[:, list(ends)] = True
        scores = scores.masked_fill((drawn.early < s.min_tokens)[:, None] & masked, float("-inf"))
    return scores


def read(drawn: Drawn, hypothesis: Hypothesis, ends: tuple[int, ...]) -> Reading:
    """Every drawn token under one hypothesis. `ends`: ids that are masked until `min_tokens` were drawn."""
    s, target = hypothesis.sampling, drawn.target[:, None]
    scores = punished(drawn, hypothesis, ends) / s.temperature
    own = scores.gather(-1, target)
    log_p = scores.log_softmax(-1)
    tempered = log_p.gather(-1, target)[:, 0]
    outside = torch.where(own == float("-inf"), float("inf"), 0.0)[:, 0]
    kept = scores > float("-inf")
    p = log_p.exp()
    first = stands_before(scores, own, target)
    if 0 < s.top_k < scores.shape[-1]:
        least = torch.topk(scores, s.top_k, dim=-1).values[..., -1:]
        kept = scores >= least
        outside = torch.maximum(outside, _half(least - own))
    if s.top_p < 1.0:
        within = torch.where(kept, p, 0.0)
        within = p if hypothesis.joint else within / within.sum(-1, keepdim=True)
        ordered, order = torch.sort(within, dim=-1, descending=True, stable=True)
        inside = (ordered.cumsum(-1) - ordered) < s.top_p
        nucleus = torch.zeros_like(kept).scatter(-1, order, inside) & kept
        lowest = torch.where(nucleus, scores, float("inf")).amin(-1, keepdim=True)
        mass = torch.where(first, within, 0.0).sum(-1, keepdim=True)
        over = torch.minimum(lowest - own, (mass / s.top_p).clamp(min=1e-300).log())
        out = kept.gather(-1, target) & ~nucleus.gather(-1, target)
        outside = torch.maximum(outside, torch.where(out, _half(over)[:, None], 0.0)[:, 0])
        kept = nucleus
    if s.min_p > 0.0:
        least = scores.amax(-1, keepdim=True) + math.log(s.min_p)
        kept = kept & (scores >= least)
        outside = torch.maximum(outside, _half(least - own))
    kept_p = torch.where(kept, p, 0.0)
    total = kept_p.sum(-1, keepdim=True)
    log_q = torch.where(kept, log_p - total.log(), 0.0)
    q = kept_p / total
    entropy = -(q * log_q).sum(-1)
    varentropy = (q * log_q * log_q).sum(-1) - entropy**2
    before = torch.where(first, q, 0.0).sum(-1)
    chosen = torch.where(kept, log_q, float("-inf")).gather(-1, target)[:, 0]
    best, ids = torch.where(kept, log_q, float("-inf")).topk(2, dim=-1)
    is_second = (ids[:, 1] == drawn.target) & best[:, 1].isfinite()
    return Reading(tempered, chosen, entropy, varentropy.clamp(min=0.0), before, outside, best[:, 1], is_second)


def _half(gap: Tensor) -> Tensor:
    """Both the token and the boundary may move by the error."""
    return gap.clamp(min=0.0)[..., 0] / 2


def stands_before(scores: Tensor, own: Tensor, target: Tensor) -> Tensor:
    """Which tokens come before the drawn one: likelier ones, and of equal ones those of lower id, as a stable sort."""
    ids = torch.arange(scores.shape[-1], device=scores.device)
    return (scores > own) | ((scores == own) & (ids < target))


@torch.no_grad()
def scores(sample: Sample, logits: Tensor, sampling: Sampling, ends: tuple[int, ...]) -> dict[str, Any]:
    """The arrays of a `native_score` frame for one sample, float32, by name; {} for a greedy sampler."""
    if sampling.temperature == 0.0:
        return {}
    asked, found = Hypothesis(sampling), dict[str, list[Tensor]]()
    drawn = Drawn.of([(sample, logits)], penalty=sampling.repetition_penalty != 1.0)
    strict = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(False)  # CUDA has no deterministic cumsum, which top-p needs
    try:
        for start in range(0, len(sample.response), CHUNK):
            part = drawn.part(slice(start, start + CHUNK))
            one = read(part, asked, ends)
            values = [one.tempered, one.processed, one.entropy, one.varentropy, one.before, one.outside]
            for name, value in zip(NAMES, values, strict=True):
                found.setdefault(name, []).append(value)
            if sampling.top_k > 0 and sampling.top_p < 1.0:
                other = read(part, dataclasses.replace(asked, joint=True), ends)
                for name, value in zip(JOINT, (other.processed, other.outside), strict=True):
                    found.setdefault(name, []).append(value)
            if sampling.repetition_penalty != 1.0:
                found.setdefault(BLIND, []).append(read(part, dataclasses.replace(asked, blind=True), ends).tempered)
    finally:
        torch.use_deterministic_algorithms(strict)
    return {name: torch.cat(parts).float().cpu().numpy() for name, parts in found.items()}


SUSPECT = 2.5  # standard errors; a fit takes seconds, and one in forty sound stages is fitted for nothing


def suspect(rows: list[dict[str, NDArray[np.float32]]]) -> bool:
    """Are a stage's arrays (`scores` of each sample) worth a fit: tokens outside, or surprisal or mass off its mean?"""
    if not rows or "processed_logprob" not in rows[0]:
        return False
    flat = {name: torch.from_numpy(np.concatenate([row[name] for row in rows])).double() for name in NAMES}
    surplus = -float((flat["processed_logprob"] + flat["entropy"]).sum())
    off = abs(surplus) / math.sqrt(max(float(flat["varentropy"].sum()), 1e-30))
    if bool((flat["outside"] > 0).any()) or off > SUSPECT:
        return True
    return not uniform(flat["mass_before"], flat["processed_logprob"].exp())


def uniform(before: Tensor, own: Tensor) -> bool:
    """Is the mass before each token, with a random share of its own, as uniform as its mean and its largest say?"""
    mass = before + torch.from_numpy(np.random.default_rng(0).random(len(own))).to(own.device) * own
    off = abs(float((mass - 0.5).sum())) / math.sqrt(len(own) / 12)
    return off <= SUSPECT and float(mass.max()) ** len(own) >= 1e-3
