"""The learner's reading of native samples: what each drawn token is worth under what the sampler was asked to do.

An engine's own sampler says which token it took and one number about it. The learner knows the whole distribution at
each position, so it can hold the draws against it. Under the right sampler the surprisal of a token less the entropy of
its position has mean zero and a known variance (a martingale difference), and the mass that stands before the token in
the order of probability, plus a random share of its own, is uniform (Rosenblatt 1952). One engine's samples are
enough to say that this engine does not draw what was asked.

The canonical order is the one of `sampling.filtered`: penalty, temperature, top-k, top-p over the renormalised top-k,
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

from scenarios.engines import sampling
from scenarios.engines.penalties import PENALTIES, Occurred, penalised
from scenarios.engines.sampling import Ordered, Reading, Tempered
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


def mixture_likelihood(reading: Reading, passed: float) -> Tensor:
    """Log-probability of each token where so large a share is the second best one, whatever it is."""
    if not passed:
        return reading.processed
    return torch.log((1 - passed) * reading.processed.exp() + passed * reading.is_second)


def mixture_moments(reading: Reading, passed: float) -> tuple[Tensor, Tensor]:
    """Mean and variance of the surprisal of each position under the same."""
    away = torch.where(reading.second.isfinite(), -reading.second, 0.0)
    mean = (1 - passed) * reading.entropy + passed * away
    square = (1 - passed) * (reading.varentropy + reading.entropy**2) + passed * away**2
    return mean, (square - mean**2).clamp(min=0.0) if passed else reading.varentropy


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
    def of(pairs: list[tuple[Sample, Tensor]], *, penalty: bool) -> Drawn:
        """Samples with the logits of their responses, [response, vocabulary] each."""
        device = pairs[0][1].device
        logits = torch.cat([sample_logits for _, sample_logits in pairs])
        target = torch.tensor([token for sample, _ in pairs for token in sample.response], device=device)
        early = torch.cat([torch.arange(len(sample.response), device=device) for sample, _ in pairs])
        if not penalty:
            return Drawn(logits, target, early)
        parts = [Occurred.of(sample.prompt, sample.response, *rows.shape) for sample, rows in pairs]
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
    return sampling.barred(scores, drawn.early, s.min_tokens, ends)


def read(drawn: Drawn, hypothesis: Hypothesis, ends: tuple[int, ...]) -> Reading:
    """Every drawn token under one hypothesis. `ends`: ids that are masked until `min_tokens` were drawn."""
    s = hypothesis.sampling
    return sampling.read(punished(drawn, hypothesis, ends), drawn.target, s.temperature, s, joint=hypothesis.joint)


@torch.no_grad()
def scores(sample: Sample, logits: Tensor, requested: Sampling, ends: tuple[int, ...]) -> dict[str, Any]:
    """The arrays of a `native_score` frame for one sample, float32, by name; {} for a greedy sampler."""
    if requested.temperature == 0.0:
        return {}
    plain, parts_by_name = Hypothesis(requested), dict[str, list[Tensor]]()
    drawn = Drawn.of([(sample, logits)], penalty=requested.repetition_penalty != 1.0)
    strict = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(False)  # CUDA has no deterministic cumsum, which top-p needs
    try:
        for start in range(0, len(sample.response), CHUNK):
            part = drawn.part(slice(start, start + CHUNK))
            if requested.top_k > 0 and requested.top_p < 1.0:  # sorted once for both meanings
                tempered = Tempered(Ordered.of(punished(part, plain, ends), part.target), requested.temperature)
                reading, joint_reading = tempered.reading(requested), tempered.reading(requested, joint=True)
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


def uniform(before: Tensor, token_mass: Tensor) -> bool:
    """Is the mass before each token, with a random share of its own, as uniform as its mean and its largest say?"""
    mass = (
        before + torch.from_numpy(np.random.default_rng(0).random(len(token_mass))).to(token_mass.device) * token_mass
    )
    off = abs(float((mass - 0.5).sum())) / math.sqrt(len(token_mass) / 12)
    return off <= SUSPECT and float(mass.max()) ** len(token_mass) >= 1e-3
