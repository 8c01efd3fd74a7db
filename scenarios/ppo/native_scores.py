"""The learner's reading of native samples: how likely each drawn token is under what the sampler was asked to do.

An engine's own sampler reports which token it took and one number about it. The learner knows the whole distribution
at each position, so it can test the draws against it. Under the right sampler, the surprisal of a token minus the
entropy of its position has mean zero and a known variance (a martingale difference). The mass before the token in the
order of probability, plus a random share of its own mass, is uniform (Rosenblatt 1952). So the samples of one engine
are enough to show that it does not draw what was asked.

The canonical order is that of `sampling.filtered`: penalty, temperature, top-k, top-p over the renormalised top-k,
min-p. `Hypothesis` describes other meanings that a sampler may use.
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

from scenarios.engines import sampling
from scenarios.engines.penalties import PENALTIES, Occurred, penalised
from scenarios.engines.sampling import Ordered, Reading, Tempered, TopPRule
from scenarios.ppo.batches import Sample
from scenarios.ppo.margins import CHUNK
from scenarios.settings import Sampling

NAMES = ("tempered_logprob", "processed_logprob", "entropy", "varentropy", "mass_before", "outside")
JOINT = ("joint_logprob", "outside_joint")
BLIND = "blind_logprob"
NO_PENALTY = tuple(PENALTIES.values())


@dataclass(frozen=True)
class Hypothesis:
    """What a sampler may have done.

    `sampling`: its parameters. `joint`: top-p over the unfiltered mass beside top-k, as in SGLang. `blind`: the
    repetition penalty covers the output only, as in SGLang. `presence`, `frequency`: penalties that no scenario
    requests, but that a default may contain. `passed`: the share of tokens at which the second best one is taken.
    `exclusive`: top-p leaves out the token that reaches its share.
    """

    sampling: Sampling
    joint: bool = False
    blind: bool = False
    presence: float = 0.0
    frequency: float = 0.0
    passed: float = 0.0
    exclusive: bool = False

    @property
    def top_p_rule(self) -> TopPRule:
        """Which tokens top-p keeps."""
        return TopPRule(self.joint, self.exclusive)


def mixture_likelihood(reading: Reading, passed: float) -> Tensor:
    """Return the log-probability of each token if the share `passed` of draws takes the second best token."""
    if not passed:
        return reading.processed
    return torch.log((1 - passed) * reading.processed.exp() + passed * reading.is_second)


def mixture_moments(reading: Reading, passed: float) -> tuple[Tensor, Tensor]:
    """Return mean and variance of the surprisal at each position under the same mixture."""
    away = torch.where(reading.second.isfinite(), -reading.second, 0.0)
    mean = (1 - passed) * reading.entropy + passed * away
    square = (1 - passed) * (reading.varentropy + reading.entropy**2) + passed * away**2
    return mean, (square - mean**2).clamp(min=0.0) if passed else reading.varentropy


@dataclass(frozen=True)
class Drawn:
    """Drawn tokens of any samples, one row each.

    `logits`: the model's own, [n, vocabulary]. `target`: the drawn tokens, [n]. `early`: how many tokens of its
    response came before, [n]. `occurred`: the tokens that penalties cover; None where no penalty is read.
    """

    logits: Tensor
    target: Tensor
    early: Tensor
    occurred: Occurred | None = None

    @staticmethod
    def of(pairs: list[tuple[Sample, Tensor]], *, penalty: bool) -> Drawn:
        """Make one from samples and the logits of their responses, [response, vocabulary] each."""
        device = pairs[0][1].device
        logits = torch.cat([sample_logits for _, sample_logits in pairs])
        target = torch.tensor([token for sample, _ in pairs for token in sample.response], device=device)
        early = torch.cat([torch.arange(len(sample.response), device=device) for sample, _ in pairs])
        if not penalty:
            return Drawn(logits, target, early)
        parts = [Occurred.of(sample.prompt, sample.response, *rows.shape) for sample, rows in pairs]
        return Drawn(logits, target, early, Occurred.joined(parts).to(device))

    def part(self, rows: slice) -> Drawn:
        """Return some of the rows."""
        occurred = None if self.occurred is None else self.occurred.part(rows)
        return Drawn(self.logits[rows], self.target[rows], self.early[rows], occurred)


def punished(drawn: Drawn, hypothesis: Hypothesis, ends: tuple[int, ...]) -> Tensor:
    """Return the logits before the temperature: penalties applied, and `ends` masked until `min_tokens` were drawn.

    float64, [n, vocabulary].
    """
    s, scores = hypothesis.sampling, drawn.logits.double()
    penalties = (s.repetition_penalty, hypothesis.presence, hypothesis.frequency)
    if penalties != NO_PENALTY:
        assert drawn.occurred is not None, "rows without what a penalty covers"
        scores = penalised(scores, drawn.occurred, *penalties, blind=hypothesis.blind)
    return sampling.barred(scores, drawn.early, s.min_tokens, ends)


def read(drawn: Drawn, hypothesis: Hypothesis, ends: tuple[int, ...]) -> Reading:
    """Read every drawn token under one hypothesis. `ends`: ids that are masked until `min_tokens` were drawn."""
    s = hypothesis.sampling
    return sampling.read(punished(drawn, hypothesis, ends), drawn.target, s.temperature, s, rule=hypothesis.top_p_rule)


@torch.no_grad()
def scores(sample: Sample, logits: Tensor, requested: Sampling, ends: tuple[int, ...]) -> dict[str, Any]:
    """Return the arrays of a `native_score` frame for one sample, float32, by name; {} for a greedy sampler."""
    if requested.temperature == 0.0:
        return {}
    plain, parts_by_name = Hypothesis(requested), dict[str, list[Tensor]]()
    drawn = Drawn.of([(sample, logits)], penalty=requested.repetition_penalty != 1.0)
    strict = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(False)  # CUDA has no deterministic cumsum, which top-p needs
    try:
        # In parts: each reading makes several tables of [tokens, vocabulary] in float64.
        for start in range(0, len(sample.response), CHUNK):
            part = drawn.part(slice(start, start + CHUNK))
            if requested.top_k > 0 and requested.top_p < 1.0:  # sort once for both meanings
                tempered = Tempered(Ordered.of(punished(part, plain, ends), part.target), requested.temperature)
                reading, joint_reading = (
                    tempered.reading(requested),
                    tempered.reading(requested, rule=TopPRule(joint=True)),
                )
                for name, value in zip(JOINT, (joint_reading.processed, joint_reading.outside), strict=True):
                    parts_by_name.setdefault(name, []).append(value)
            else:
                reading = read(part, plain, ends)
            values = [
                reading.tempered,
                reading.processed,
                reading.entropy,
                reading.varentropy,
                reading.before,
                reading.outside,
            ]
            for name, value in zip(NAMES, values, strict=True):
                parts_by_name.setdefault(name, []).append(value)
            if requested.repetition_penalty != 1.0:
                parts_by_name.setdefault(BLIND, []).append(
                    read(part, dataclasses.replace(plain, blind=True), ends).tempered
                )
    finally:
        torch.use_deterministic_algorithms(strict)
    return {name: torch.cat(parts).float().cpu().numpy() for name, parts in parts_by_name.items()}


SUSPECT = 2.5  # standard errors; a fit takes seconds, and one in forty sound stages is fitted needlessly


def suspect(rows: list[dict[str, NDArray[np.float32]]]) -> bool:
    """Whether a stage's arrays (`scores` of each sample) need a fit: tokens outside, or surprisal or mass off its
    mean.
    """
    if not rows or "processed_logprob" not in rows[0]:
        return False
    flat = {name: torch.from_numpy(np.concatenate([row[name] for row in rows])).double() for name in NAMES}
    surplus = -float((flat["processed_logprob"] + flat["entropy"]).sum())
    off = abs(surplus) / math.sqrt(max(float(flat["varentropy"].sum()), 1e-30))
    if bool((flat["outside"] > 0).any()) or off > SUSPECT:
        return True
    return not uniform(flat["mass_before"], flat["processed_logprob"].exp())


def uniform(before: Tensor, token_mass: Tensor) -> bool:
    """Whether the mass before each token, plus a random share of its own, is uniform, judged by its mean and its
    largest value.
    """
    mass = (
        before + torch.from_numpy(np.random.default_rng(0).random(len(token_mass))).to(token_mass.device) * token_mass
    )
    off = abs(float((mass - 0.5).sum())) / math.sqrt(len(token_mass) / 12)
    largest = min(1.0, float(mass.max()))  # a token that rounding let in lies behind all of the mass
    return off <= SUSPECT and largest ** len(token_mass) >= 1e-3
