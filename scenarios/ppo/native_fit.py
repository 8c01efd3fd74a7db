"""What a sampler did instead of what it was asked: the fewest changes under which its samples are likely.

Samples that do not fit what was asked are read again with one parameter changed to its likeliest value (temperature,
a truncation, a penalty), or with another meaning of it (top-p beside top-k over the unfiltered mass; a penalty blind to
the prompt). The change that gains most likelihood is kept; another is sought while something is left to explain.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from scenarios.ppo.batches import Sample
from scenarios.ppo.native_scores import SUSPECT, Drawn, Hypothesis, Reading, read, uniform
from scenarios.settings import Sampling

GAIN = 10.0  # nats; by Wilks's theorem a useless parameter gains as much once in 130,000 samples
ROUNDS = 3
PAIRED = 0.03  # share to which a temperature is sought beside a truncation
# Logits that are read: 1,024 tokens of a vocabulary of 2,048, on which a temperature of 0.8 gains some 100 nats and a
# fit takes 10 s of one core.
MOST = 1 << 21
FEWEST = 256  # tokens, whatever the vocabulary
ELEMENTS = 1 << 21  # of one [rows, vocabulary] of float64 at a time; a reading makes some ten of them
OUTSIDE = 1e-3  # nats; a token nearer to the boundary may have been let in by rounding


@dataclass(frozen=True)
class Fit:
    """One change to what was asked that explains the samples better. `change`: a field of `Sampling`, `joint` or
    `blind`; `gain`: nats of log-likelihood over what came before it, inf where that allowed the samples not at all;
    `before`, `after`: standard errors by which the surprisal is off; `outside`: tokens outside of the support, before
    and after.
    """

    change: str
    value: float
    gain: float
    before: float
    after: float
    outside_before: int
    outside_after: int


@dataclass(frozen=True)
class Total:
    """A hypothesis over all samples: log-likelihood, standard errors by which surprisal is off, tokens outside."""

    likelihood: float
    off: float
    outside: int
    sound: bool  # nothing is left to explain


class Fitter:
    """Looks for the fewest changes to what was asked under which the samples are likely.

    `held`: samples with the model's own logits of their responses, [response, vocabulary].
    """

    def __init__(self, held: list[tuple[Sample, Tensor]], ends: tuple[int, ...]) -> None:
        self._drawn, self._ends = Drawn.of(held, penalty=True), ends
        stopped = [len(sample.response) - 1 for sample, _ in held if sample.response and sample.response[-1] in ends]
        self._earliest_end = min(stopped, default=None)

    @torch.no_grad()
    def fits(self, asked: Sampling) -> list[Fit]:
        """The changes in the order in which they were found; [] where none helps."""
        now, found = Hypothesis(asked), list[Fit]()
        total = self._total(now)
        for _ in range(ROUNDS):
            if found and total.sound:
                break
            tried = [(self._total(one), one, changes) for changes, one in self._alternatives(now)]
            # Fewer tokens outside come first, then likelihood: of two that forbid samples neither has one.
            after, changed, changes = min(
                tried, key=lambda one: (one[0].outside, GAIN * len(one[2]) - one[0].likelihood)
            )  # fmt: skip
            gain = after.likelihood - total.likelihood if math.isfinite(after.likelihood) else 0.0
            if gain < GAIN * len(changes) and after.outside >= total.outside:
                break
            found += [
                Fit(change, value, gain, total.off, after.off, total.outside, after.outside)
                for change, value in changes.items()
            ]
            now, total = changed, after
        return found

    def _read(self, hypothesis: Hypothesis) -> Reading:
        step = max(1, ELEMENTS // self._drawn.logits.shape[-1])
        parts = [
            read(self._drawn.part(slice(start, start + step)), hypothesis, self._ends)
            for start in range(0, len(self._drawn.target), step)
        ]
        names = [field.name for field in dataclasses.fields(Reading)]
        return Reading(*(torch.cat([getattr(part, name) for part in parts]) for name in names))

    def _total(self, hypothesis: Hypothesis) -> Total:
        one = self._read(hypothesis)
        out, likelihood = one.outside > OUTSIDE, _allowed(one)
        surplus = -float((likelihood + one.entropy)[~out].sum())
        variance = float(one.varentropy[~out].sum())
        outside = int(out.sum())
        whole = float("-inf") if outside else float(likelihood.sum())
        off = surplus / math.sqrt(variance) if variance > 0 else 0.0
        return Total(whole, off, outside, not outside and abs(off) <= SUSPECT and uniform(one.before, likelihood.exp()))

    def _alternatives(self, now: Hypothesis) -> list[tuple[dict[str, float], Hypothesis]]:
        """One parameter changed each, to its likeliest value, or read with the other meaning that engines give it; and
        a temperature with each truncation, as a generation_config leaks them together.
        """
        s = now.sampling
        found: list[tuple[dict[str, float], Hypothesis]] = []

        def add(**changes: float) -> None:
            found.append((changes, _with(now, **changes)))

        if s.top_k > 0 and s.top_p < 1.0 and not now.joint:
            found.append(({"joint": 1.0}, dataclasses.replace(now, joint=True)))
        if s.repetition_penalty != 1.0 and not now.blind:
            found.append(({"blind": 1.0}, dataclasses.replace(now, blind=True)))
        if self._earliest_end is not None and self._earliest_end < s.min_tokens:
            add(min_tokens=self._earliest_end)
        for name, value in self._extent(now).items():
            add(**{name: value})
        penalty = _peak(lambda r: self._slope(_with(now, repetition_penalty=r)), 0.6, 1.8)
        add(repetition_penalty=penalty)
        low, high = 0.2 * s.temperature, 5.0 * s.temperature
        add(temperature=_peak(lambda t: self._slope(_with(now, temperature=t)), low, high))
        for name in ("top_k", "top_p", "min_p"):

            def truncated(t: float, name: str = name) -> dict[str, float]:
                return {"temperature": t, name: self._extent(_with(now, temperature=t))[name]}

            best = _peak(lambda t, of=truncated: self._slope(_with(now, **of(t))), low, high, PAIRED)
            add(**truncated(best))
        return found

    def _slope(self, hypothesis: Hypothesis) -> float:
        """Log-likelihood with tokens outside of the support at a hundred nats each: a search needs a slope."""
        one = self._read(hypothesis)
        return float(torch.where(one.outside > OUTSIDE, -100.0, _allowed(one)).sum())

    def _extent(self, now: Hypothesis) -> dict[str, float]:
        """Each truncation at its likeliest: just wide enough for every token that was drawn."""
        untruncated = _with(now, top_k=-1, top_p=1.0, min_p=0.0)
        free = self._read(untruncated)
        inside = free.processed > float("-inf")
        if not bool(inside.any()):
            return {"top_k": -1, "top_p": 1.0, "min_p": 0.0}
        nucleus = free
        if now.sampling.top_k > 0 and not now.joint:
            nucleus = self._read(_with(untruncated, top_k=now.sampling.top_k))
        before = nucleus.before[nucleus.processed > float("-inf")]
        share = (free.processed - free.best)[inside].exp().min()
        return {
            "top_k": float(free.rank[inside].max()),
            "top_p": min(1.0, float(before.max()) * (1 + 1e-9)) if len(before) else 1.0,
            "min_p": float(share) * (1 - 1e-9),
        }


def _allowed(one: Reading) -> Tensor:
    """Log-probabilities in which a token that only rounding left outside counts as if nothing were cut off."""
    return torch.where(one.processed > float("-inf"), one.processed, one.tempered)


def _with(hypothesis: Hypothesis, **changes: float) -> Hypothesis:
    new: Any = {name: int(value) if name in ("top_k", "min_tokens") else value for name, value in changes.items()}
    return dataclasses.replace(hypothesis, sampling=dataclasses.replace(hypothesis.sampling, **new))


def _peak(of: Callable[..., float], low: float, high: float, within: float = 0.004) -> float:
    """Where a function with one peak is largest, to that share of the place: golden sections of the logarithm."""
    golden = (math.sqrt(5) - 1) / 2
    a, b = math.log(low), math.log(high)
    c, d = b - golden * (b - a), a + golden * (b - a)
    at_c, at_d = of(math.exp(c)), of(math.exp(d))
    while b - a > within:
        if at_c > at_d:
            b, d, at_d = d, c, at_c
            c = b - golden * (b - a)
            at_c = of(math.exp(c))
        else:
            a, c, at_c = c, d, at_d
            d = a + golden * (b - a)
            at_d = of(math.exp(d))
    return math.exp((a + b) / 2)
