"""Finds what a sampler did instead of what was requested: the fewest changes under which its samples are likely.

Samples that do not fit the request are read again with one parameter changed to its likeliest value (temperature, a
truncation, a penalty), or with another meaning of it (top-p beside top-k over the unfiltered mass, or without the
token that reaches its share; a penalty that ignores the prompt). The change that gains most likelihood is kept, and
the search continues while something is left to explain.

Without common noise there are likelihoods but no constraints. `scenarios.bench.fit` has constraints, one per choice,
and no likelihood. The two share the parameters' axes (`canonical.AXES`) and the sampler's arithmetic.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from scenarios.engines import canonical
from scenarios.engines.sampling import OUTSIDE, Ordered, Reading, Tempered, untruncated, widest
from scenarios.golden_section import peak
from scenarios.ppo.batches import Sample
from scenarios.ppo.native_scores import (
    SUSPECT,
    Drawn,
    Hypothesis,
    mixture_likelihood,
    mixture_moments,
    punished,
    read,
    uniform,
)
from scenarios.settings import Sampling

GAIN = 10.0  # nats; by Wilks's theorem a useless parameter gains this much once in 130,000 cases
ROUNDS = 3  # a choice: most changes that are searched, one after the other
FINE = 0.004  # relative precision of a fitted parameter
PAIRED = 0.03  # relative precision of a temperature that is fitted beside a truncation
# How many logits are read. 1,024 tokens of a vocabulary of 2,048, on which a temperature of 0.8 gains some 100 nats.
# A fit takes 4 s of one core.
MOST = 1 << 21
MORE = 8  # times as many, without truncations, where those show nothing: for changes with a small effect
FEWEST = 256  # fewest tokens, for any vocabulary
ELEMENTS = 1 << 21  # elements of one [rows, vocabulary] float64 table at a time; a reading makes some ten of them
WIDER = (1.0, 1.1, 1.2, 1.35, 1.5, 1.75, 2.0, 3.0, 5.0)  # factors of the narrowest top-k that are tried beside top-p
Order = tuple[float, float, float, bool, int]


@dataclass(frozen=True)
class Fit:
    """One change to what was requested that explains the samples better.

    `change`: a field of `Sampling`, or `joint`, `exclusive`, `blind`, `presence_penalty`, `frequency_penalty`,
    `passed` (the share of tokens at which the second best is taken). `value`: its value. `gain`: nats of log-likelihood
    over the hypothesis before it; inf where that did not allow the samples at all. `before`, `after`: standard errors
    by which the surprisal is off. `outside_before`, `outside_after`: tokens outside of the support. `over`: nats by
    which it is likelier than the best change that does not touch this parameter.
    """

    change: str
    value: float
    gain: float
    before: float
    after: float
    outside_before: int
    outside_after: int
    over: float = 0.0


@dataclass(frozen=True)
class Total:
    """A hypothesis over all samples.

    `likelihood`: log-likelihood in nats. `off`: standard errors by which the surprisal is off. `outside`: tokens
    outside of the support.
    """

    likelihood: float
    off: float
    outside: int
    sound: bool  # nothing is left to explain


class _Trial(NamedTuple):
    """A candidate change. `outside`: tokens outside of the support. `likelihood`: -inf where there are any."""

    changes: dict[str, float]
    hypothesis: Hypothesis
    outside: int
    likelihood: float

    def rank(self) -> tuple[int, float]:
        """Return what is least for the best trial.

        Fewer tokens outside come first, then likelihood: two hypotheses that forbid samples have no likelihood to
        compare. Each parameter that is changed has to gain what chance would not.
        """
        return self.outside, GAIN * len(self.changes) - self.likelihood


class Fitter:
    """Searches the fewest changes to what was requested under which the samples are likely.

    `pairs`: samples with the model's own logits of their responses, [response, vocabulary]. `ends`: ids that end a
    response. `slack`: nats by which rounding may let a token in.
    """

    def __init__(self, pairs: list[tuple[Sample, Tensor]], ends: tuple[int, ...], slack: float = OUTSIDE) -> None:
        self._slack = slack
        self._drawn, self._ends = Drawn.of(pairs, penalty=True), ends
        stopped = [len(sample.response) - 1 for sample, _ in pairs if sample.response and sample.response[-1] in ends]
        self._earliest_end = min(stopped, default=None)
        self._order: Order | None = None  # the parameters under which `_ordered` was made
        self._ordered: list[Ordered] = []
        self._at: list[Tempered] = []

    @torch.no_grad()
    def fits(self, requested: Sampling, *, filters: bool = True) -> list[Fit]:
        """Return the changes in the order in which they were found; [] where none helps.

        `filters`: also try truncations, which take most of the time.
        """
        # Greedy: the change that gains most is kept, and the next is searched on top of it.
        now, fits = Hypothesis(requested), list[Fit]()
        total = self._total(now)
        for _ in range(ROUNDS):
            if fits and total.sound:
                break
            tried = [
                _Trial(changes, hypothesis, *self._worth(hypothesis))
                for changes, hypothesis in self._alternatives(now, filters)
            ]
            # Trials are ranked by the sum of likelihoods alone, which is cheap. Only the best of them is read in full.
            best = min(tried, key=_Trial.rank)
            after = self._total(best.hypothesis)
            gain = after.likelihood - total.likelihood if math.isfinite(after.likelihood) else 0.0
            # Stop when the best change gains no more than chance would.
            if gain < GAIN * len(best.changes) and after.outside >= total.outside:
                break
            fits += [
                Fit(
                    change=change,
                    value=value,
                    gain=gain,
                    before=total.off,
                    after=after.off,
                    outside_before=total.outside,
                    outside_after=after.outside,
                    over=_over(after.likelihood, [trial.likelihood for trial in tried if change not in trial.changes]),
                )
                for change, value in best.changes.items()
            ]
            now, total = best.hypothesis, after
        return fits

    def _parts(self) -> Iterator[Drawn]:
        step = max(1, ELEMENTS // self._drawn.logits.shape[-1])
        for start in range(0, len(self._drawn.target), step):
            yield self._drawn.part(slice(start, start + step))

    def _read(self, hypothesis: Hypothesis) -> Reading:
        parts = [read(part, hypothesis, self._ends) for part in self._parts()]
        names = [field.name for field in dataclasses.fields(Reading)]
        return Reading(*(torch.cat([getattr(part, name) for part in parts]) for name in names))

    def _total(self, hypothesis: Hypothesis) -> Total:
        reading = self._read(hypothesis)
        out = reading.outside > self._slack
        # A token outside of the filters counts as if nothing were cut off, see `Tempered.read`.
        likelihood = torch.where(reading.processed > float("-inf"), reading.processed, reading.tempered)
        # The surprisal of samples that follow the hypothesis has the mean and the spread of its own distribution.
        # Both are known for each token, so their sums are the mean and the variance of the whole stage.
        mean, spread = mixture_moments(reading, hypothesis.passed)
        surplus = -float((likelihood + mean)[~out].sum())
        variance = float(spread[~out].sum())
        outside = int(out.sum())
        mixed = mixture_likelihood(reading, hypothesis.passed).where(~out, likelihood)
        total_likelihood = float("-inf") if outside else float(mixed.sum())
        off = surplus / math.sqrt(variance) if variance > 0 else 0.0
        even = hypothesis.passed > 0 or uniform(reading.before, likelihood.exp())  # a mixture's mass is not uniform
        return Total(total_likelihood, off, outside, not outside and abs(off) <= SUSPECT and even)

    def _alternatives(self, now: Hypothesis, filters: bool) -> list[tuple[dict[str, float], Hypothesis]]:
        """Return candidate changes with their hypotheses.

        They are: one parameter changed to its likeliest value; one read with the other meaning that engines give it;
        both filters; and a temperature with each truncation and with both filters, as a generation_config leaks them
        together.
        """
        within = FINE if filters else PAIRED
        low, high = 0.2 * now.sampling.temperature, 5.0 * now.sampling.temperature
        temperature = peak(lambda t: self._slope(_with(now, temperature=t)), low, high, within)
        alternatives = [
            *self._other_readings(now),
            *self._penalties(now, within),
            ({"temperature": temperature}, _with(now, temperature=temperature)),
        ]
        if filters:
            alternatives += [(change, _with(now, **change)) for change in self._truncations(now, low, high)]
        return alternatives

    def _other_readings(self, now: Hypothesis) -> Iterator[tuple[dict[str, float], Hypothesis]]:
        """Yield the other meanings that engines give to the parameters, and an end before the least length."""
        s = now.sampling
        if s.top_k > 0 and s.top_p < 1.0 and not now.joint:
            yield {"joint": 1.0}, dataclasses.replace(now, joint=True)
        if s.top_p < 1.0 and not now.exclusive:
            yield {"exclusive": 1.0}, dataclasses.replace(now, exclusive=True)
        if s.repetition_penalty != 1.0 and not now.blind:
            yield {"blind": 1.0}, dataclasses.replace(now, blind=True)
        if self._earliest_end is not None and self._earliest_end < s.min_tokens:
            yield {"min_tokens": self._earliest_end}, _with(now, min_tokens=self._earliest_end)

    def _penalties(self, now: Hypothesis, within: float) -> Iterator[tuple[dict[str, float], Hypothesis]]:
        """Yield the likeliest value of each penalty, and the likeliest share of tokens that pass all filters."""
        penalty = peak(lambda r: self._slope(_with(now, repetition_penalty=r)), 0.6, 1.8, within)
        yield {"repetition_penalty": penalty}, _with(now, repetition_penalty=penalty)
        subtracted: dict[str, Callable[[float], Hypothesis]] = {  # subtracted, so the search runs over the exponential
            "presence_penalty": lambda factor: dataclasses.replace(now, presence=math.log(factor)),
            "frequency_penalty": lambda factor: dataclasses.replace(now, frequency=math.log(factor)),
        }
        for name, of in subtracted.items():
            best = peak(lambda factor, of=of: self._slope(of(factor)), math.exp(-2.0), math.exp(2.0), within)
            yield {name: math.log(best)}, of(best)
        if not now.passed:
            reading = self._read(now)
            share = peak(lambda p: float(mixture_likelihood(reading, p).clamp(min=-100.0).sum()), 1e-3, 0.5)
            yield {"passed": share}, dataclasses.replace(now, passed=share)

    def _truncations(self, now: Hypothesis, low: float, high: float) -> Iterator[dict[str, float]]:
        """Yield each filter as narrow as the tokens allow, both, and each of these with a temperature of its own."""
        extent, filter_values = self._extent(now), self._filters(now)
        yield from ({name: value} for name, value in extent.items())
        if filter_values["top_k"] != extent["top_k"] or filter_values["top_p"] != extent["top_p"]:
            yield filter_values
        for names in (*((parameter.name,) for parameter in canonical.FILTERS), ("top_k", "top_p")):

            def truncated(t: float, names: tuple[str, ...] = names) -> dict[str, float]:
                tempered = _with(now, temperature=t)
                widest = self._extent(tempered) if len(names) == 1 else self._filters(tempered)
                return {"temperature": t} | {name: widest[name] for name in names}

            yield truncated(peak(lambda t, of=truncated: self._slope(_with(now, **of(t))), low, high, PAIRED))

    def _slope(self, hypothesis: Hypothesis) -> float:
        """Return the log-likelihood, with a hundred nats per token outside of the support: a search needs a slope."""
        return sum(float(torch.where(out, -100.0, logprobs).sum()) for logprobs, out in self._likelihoods(hypothesis))

    def _worth(self, hypothesis: Hypothesis) -> tuple[int, float]:
        """Return the number of tokens outside of the support, and the log-likelihood, -inf where there are any."""
        read = list(self._likelihoods(hypothesis))
        outside = sum(int(out.sum()) for _, out in read)
        return outside, float("-inf") if outside else sum(float(logprobs.sum()) for logprobs, _ in read)

    def _likelihoods(self, hypothesis: Hypothesis) -> Iterator[tuple[Tensor, Tensor]]:
        """Return for each part the tokens' log-probabilities, and which of them are outside."""
        if hypothesis.passed:
            reading = self._read(hypothesis)
            return iter([(mixture_likelihood(reading, hypothesis.passed), reading.outside > self._slack)])
        s = hypothesis.sampling
        if not canonical.filters(s) and _order(hypothesis) != self._order:
            scores = ((punished(part, hypothesis, self._ends), part.target) for part in self._parts())
            return (untruncated(*pair, s.temperature) for pair in scores)
        return (part.read(s, rule=hypothesis.top_p_rule, slack=self._slack) for part in self._tempered(hypothesis))

    def _extent(self, now: Hypothesis) -> dict[str, float]:
        """Return each truncation at its likeliest value: just wide enough for every token that was drawn."""
        parts = [part.extent(now.sampling.top_k, rule=now.top_p_rule) for part in self._tempered(now)]
        each = [extent for extent in parts if extent is not None] or [
            {parameter.name: parameter.off for parameter in canonical.FILTERS}
        ]
        return widest(each)

    def _filters(self, now: Hypothesis) -> dict[str, float]:
        """Return both filters at their likeliest: a top-k, and the narrowest top-p beside it.

        Alone, the narrowest top-k is the likeliest. Beside a top-p it may not be, because top-p takes its share of
        what top-k kept.
        """
        narrow, size = self._extent(now)["top_k"], self._drawn.logits.shape[-1]
        wider = sorted({min(size, round(narrow * factor)) for factor in WIDER})
        tried = [{"top_k": k, "top_p": self._extent(_with(now, top_k=k))["top_p"]} for k in wider]
        return max(tried, key=lambda values: self._slope(_with(now, **values)))

    def _tempered(self, hypothesis: Hypothesis) -> list[Tempered]:
        """Return the ordered parts at the hypothesis's temperature. The last one is kept: a search asks for it
        several times.
        """
        order = _order(hypothesis)
        if order != self._order:
            parts = ((punished(part, hypothesis, self._ends), part.target) for part in self._parts())
            self._ordered, self._order = [Ordered.of(*part) for part in parts], order
            self._at = []
        if not self._at or self._at[0].temperature != hypothesis.sampling.temperature:
            self._at = [Tempered(part, hypothesis.sampling.temperature) for part in self._ordered]
        return self._at


def _order(hypothesis: Hypothesis) -> Order:
    """Return the parameters on which the order of the tokens depends."""
    s = hypothesis.sampling
    return s.repetition_penalty, hypothesis.presence, hypothesis.frequency, hypothesis.blind, s.min_tokens


def _over(likelihood: float, rivals: list[float]) -> float:
    return likelihood - max(rivals, default=-math.inf) if math.isfinite(likelihood) else 0.0


def _with(hypothesis: Hypothesis, **changes: float) -> Hypothesis:
    new: Any = {name: int(value) if name in ("top_k", "min_tokens") else value for name, value in changes.items()}
    return dataclasses.replace(hypothesis, sampling=dataclasses.replace(hypothesis.sampling, **new))
