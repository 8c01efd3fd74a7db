"""The only sampler core: what temperature, top-k, top-p and min-p keep of a distribution, and how likely a draw was.

The canonical order: end ids are masked below `min_tokens`, then temperature, top-k, top-p over the renormalised
top-k, min-p relative to the largest remaining probability. `TopPRule` has the two other meanings of top-p that engines
use.

Every rule is implemented once, in two forms. `filtered` and `read` work in the order of the vocabulary and sort only
for top-p. `Tempered` works on tokens that are sorted once. Their order does not depend on the temperature, and
filters always keep the first tokens of it. So another temperature or filter costs only an exponential and a sum.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from scenarios.settings import CoupledSampling

if TYPE_CHECKING:
    from scenarios.engines.coupling import Draw

OUTSIDE = 1e-3  # nats; rounding may have let in a token that is closer to the boundary
OUTSIDE_HALF = 0.05  # the same in half precision: the cap on its rounding (subjects/precision/observed_floor.py)


class TopPRule(NamedTuple):
    """Which tokens top-p keeps.

    `joint`: its share is one of the unfiltered mass beside top-k, as in SGLang's own sampler, and not of the
    renormalised top-k. `exclusive`: the token that reaches the share is left out (transformers#18976); the likeliest
    one always stays.
    """

    joint: bool = False
    exclusive: bool = False


CANONICAL = TopPRule()


def ids_of(ends: int | Iterable[int] | None) -> frozenset[int]:
    """Return the token ids of a configuration's `eos_token_id`, which may be one, several or none."""
    if isinstance(ends, int):
        return frozenset({ends})
    return frozenset() if ends is None else frozenset(ends)


def barred(logits: Tensor, positions: Tensor, min_tokens: int, end_ids: tuple[int, ...]) -> Tensor:
    """Return `logits` [n, vocabulary] with the ids that would end the sample at -inf, in the rows before
    `min_tokens`.
    """
    early = positions < min_tokens
    if end_ids and min_tokens and bool(early.any()):
        logits = logits.clone()
        logits[early.nonzero(), torch.tensor(end_ids, device=logits.device)] = float("-inf")
    return logits


def filtered(logits: Tensor, draw: Draw, slack: float = 0.0) -> Tensor:
    """Return logits/T in float64 with everything outside top-k, top-p and min-p at -inf. [n, vocabulary] in and out.

    `slack`: nats of logits/T by which the filters are wider, or narrower below 0: the tokens that two engines may
    both keep whose logits each round by half of it. The best token always stays.
    """
    return _filtered(logits.to(torch.float64) / draw.temperature, draw, rule=draw.top_p_rule, slack=slack)


def _filtered(scores: Tensor, filters: CoupledSampling, *, rule: TopPRule, slack: float) -> Tensor:
    filtered_scores = scores
    if _cuts_top_k(filters.top_k, scores):
        ranked = torch.topk(scores, filters.top_k, dim=-1).values
        least = _least_of_top_k(ranked, filters.top_k, slack)
        filtered_scores = filtered_scores.masked_fill(filtered_scores < least, float("-inf"))
    if filters.top_p < 1.0:
        # The sort is stable, so that of equal scores every engine and the learner drop the same tokens.
        ordered, order = torch.sort(scores if rule.joint else filtered_scores, dim=-1, descending=True, stable=True)
        first = (filtered_scores > float("-inf")).sum(-1)
        tempered = Tempered(Ordered(ordered, order, torch.zeros_like(first)), 1.0)
        places = torch.arange(scores.shape[-1], device=scores.device)
        beyond = places >= tempered.nucleus(filters.top_p, first, rule=rule, slack=slack)[:, None]
        is_dropped = torch.zeros_like(beyond).scatter(-1, order, beyond)  # from the sorted order to the tokens' ids
        filtered_scores = filtered_scores.masked_fill(is_dropped, float("-inf"))
    if filters.min_p > 0.0:
        least = _least_of_min_p(filtered_scores.amax(-1, keepdim=True), filters.min_p, slack)
        filtered_scores = filtered_scores.masked_fill(filtered_scores < least, float("-inf"))
    return filtered_scores


def _cuts_top_k(top_k: int, scores: Tensor) -> bool:
    return 0 < top_k < scores.shape[-1]


def _least_of_top_k(ranked: Tensor, top_k: int, slack: float = 0.0) -> Tensor:
    """Return the lowest score that top-k keeps, [n, 1]. Tokens as likely as its last one stay too. `ranked`:
    descending.
    """
    return torch.minimum(ranked[:, top_k - 1 : top_k] - slack, ranked[:, :1])


def _least_of_min_p(best: Tensor, min_p: float, slack: float = 0.0) -> Tensor:
    """Return the lowest score that min-p keeps, in the shape of `best`."""
    return best + min(math.log(min_p) - slack, 0.0)


@dataclass(frozen=True)
class Chosen:
    """Where the chosen tokens are among all tokens, [n].

    `below`: nats below the likeliest token. `place`: their rank, from 0. `ahead`: the mass of all likelier tokens.
    `outside`: as in `Reading`.
    """

    below: Tensor
    place: Tensor
    ahead: Tensor
    outside: Tensor


@dataclass(frozen=True)
class Reading:
    """How likely each chosen token was, float64, [n].

    `tempered`: its log-probability before any filter. `processed`: after the filters; -inf outside of what they keep.
    `entropy`, `varentropy`: mean and variance of the surprisal after the filters. `before`: the mass of likelier
    tokens. `outside`: the smallest error, in nats, in every log-probability that could have let the token in; 0
    inside. `second`: log-probability of the second best token. `is_second`: whether that one was drawn.
    """

    tempered: Tensor
    processed: Tensor
    entropy: Tensor
    varentropy: Tensor
    before: Tensor
    outside: Tensor
    second: Tensor
    is_second: Tensor

    @staticmethod
    def of(below: Tensor, mass: Tensor, kept: Tensor | None, chosen: Chosen) -> Reading:
        """Make a reading from whole rows, [n, vocabulary] in any order.

        `below`: nats below the likeliest token. `mass`: their exponential. `kept`: what the filters keep; None for
        everything.
        """
        kept_mass = mass if kept is None else torch.where(kept, mass, 0.0)
        total, count = kept_mass.sum(-1), (kept_mass > 0).sum(-1)
        q = kept_mass / total[:, None]
        finite = below.masked_fill(kept_mass == 0, 0.0)
        mean = (q * finite).sum(-1)
        second = (kept_mass.topk(2, dim=-1).values[:, 1] / total).log()
        return Reading(
            tempered=chosen.below - mass.sum(-1).log(),
            processed=torch.where(chosen.place < count, chosen.below - total.log(), float("-inf")),
            entropy=total.log() - mean,
            varentropy=((q * finite * finite).sum(-1) - mean**2).clamp(min=0.0),
            before=torch.minimum(chosen.ahead, total) / total,
            outside=chosen.outside,
            second=second,
            is_second=(chosen.place == 1) & second.isfinite(),
        )


def read(
    logits: Tensor, target: Tensor, temperature: float, filters: CoupledSampling, *, rule: TopPRule = CANONICAL
) -> Reading:
    """Read the chosen tokens [n] under one sampler. Without top-p nothing is sorted."""
    if filters.top_p < 1.0:
        return Tempered(Ordered.of(logits, target), temperature).reading(filters, rule=rule)
    below = logits - logits.amax(-1, keepdim=True)
    if temperature != 1.0:
        below.div_(temperature)
    chosen = _at(below, target)
    outside, kept = _impossible(chosen), None
    floors = []
    if _cuts_top_k(filters.top_k, below):
        floors.append(_least_of_top_k(torch.topk(below, filters.top_k, dim=-1).values, filters.top_k)[:, 0])
    if filters.min_p > 0.0:
        floors.append(_least_of_min_p(torch.zeros_like(chosen), filters.min_p))
    for floor in floors:
        outside = torch.maximum(outside, _half(floor - chosen))
        above = below >= floor[:, None]
        kept = above if kept is None else kept & above
    ids = torch.arange(below.shape[-1], device=below.device)
    # Of equal scores, lower ids come first, as in a stable sort.
    ahead = (below > chosen[:, None]) | ((below == chosen[:, None]) & (ids < target[:, None]))
    mass = below.exp()
    before = torch.where(ahead, mass, 0.0).sum(-1)
    return Reading.of(below, mass, kept, Chosen(chosen, ahead.sum(-1), before, outside))


@dataclass(frozen=True)
class Ordered:
    """Tokens from the likeliest to the least likely.

    `scores`: [n, vocabulary], descending, before any temperature. `order`: the tokens in that order. `place`: of the
    chosen token, from 0, [n].
    """

    scores: Tensor
    order: Tensor
    place: Tensor
    _firsts: dict[int, Tensor] = field(default_factory=dict)

    @staticmethod
    def of(scores: Tensor, target: Tensor) -> Ordered:
        """Sort the tokens. Of equal scores, lower ids come first."""
        ordered, order = torch.sort(scores, dim=-1, descending=True, stable=True)
        return Ordered(ordered, order, (order == target[:, None]).int().argmax(-1))

    def first(self, top_k: int) -> Tensor:
        """Return how many tokens top-k keeps, [n]."""
        if top_k not in self._firsts:
            if _cuts_top_k(top_k, self.scores):
                self._firsts[top_k] = (self.scores >= _least_of_top_k(self.scores, top_k)).sum(-1)
            else:
                self._firsts[top_k] = torch.full_like(self.place, self.scores.shape[-1])
        return self._firsts[top_k]


@dataclass(frozen=True)
class Tempered:
    """The ordered tokens at one temperature, in nats below the likeliest token."""

    ordered: Ordered
    temperature: float

    @cached_property
    def scores(self) -> Tensor:
        raw = self.ordered.scores
        below = raw - raw[:, :1]
        return below.div_(self.temperature) if self.temperature != 1.0 else below

    @cached_property
    def _mass(self) -> Tensor:
        return self.scores.exp()

    @cached_property
    def _up_to(self) -> Tensor:
        """Return the mass of each token and all before it, in units of the likeliest token's mass."""
        return self._mass.cumsum(-1)

    @cached_property
    def _below(self) -> Tensor:
        """Return nats below the likeliest token, ascending."""
        return -self.scores

    @cached_property
    def _chosen_scores(self) -> Tensor:
        return _at(self.scores, self.ordered.place)

    @cached_property
    def _before(self) -> Tensor:
        return _at(self._up_to, self.ordered.place) - _at(self._mass, self.ordered.place)

    def _down_to(self, least: Tensor) -> Tensor:
        """Return how many tokens have at least this score, [n, 1] in, [n] out."""
        return torch.searchsorted(self._below, -least, right=True)[:, 0]

    def _ahead(self, place: Tensor, slack: float) -> Tensor:
        """Return how many tokens are likelier than these by more than `slack` nats, both [n]."""
        return torch.searchsorted(self._below, (_at(self._below, place) - slack)[:, None])[:, 0]

    def _mass_of(self, first: Tensor) -> Tensor:
        """Return the mass of the `first` likeliest tokens, [n]."""
        return torch.where(first > 0, _at(self._up_to, (first - 1).clamp(min=0)), 0.0)

    def _first(self, top_k: int, slack: float = 0.0) -> Tensor:
        """Return how many tokens top-k keeps, [n], with its edge `slack` nats further down."""
        if not slack or not _cuts_top_k(top_k, self.scores):
            return self.ordered.first(top_k)
        return self._down_to(_least_of_top_k(self.scores, top_k, slack))

    def _share(self, top_p: float, first: Tensor, rule: TopPRule) -> Tensor:
        """Return the mass that top-p keeps: a share of what top-k kept, or of everything."""
        return top_p * (self._up_to[:, -1] if rule.joint else self._mass_of(first))

    def _counted(self, before: Tensor, place: Tensor, rule: TopPRule) -> Tensor:
        """Return the mass that decides whether top-p keeps the token at this place: all before it, or its own too."""
        return before + torch.where(place > 0, _at(self._mass, place), 0.0) if rule.exclusive else before

    def nucleus(self, top_p: float, first: Tensor, *, rule: TopPRule = CANONICAL, slack: float = 0.0) -> Tensor:
        """Return how many of the `first` tokens top-p keeps, [n]: those with less than its share of the mass before
        them.

        With `slack` above 0, only tokens that are ahead by more than it count as before a token. Below 0, tokens that
        are behind by less than it count too. Then the number is found by bisection, because the mass before a token
        grows along the order.
        """
        share = self._share(top_p * math.exp(slack), first, rule)
        if not slack:
            reached = torch.searchsorted(self._up_to, share[:, None])[:, 0] + (not rule.exclusive)
            return torch.minimum(reached.clamp(min=1, max=self.scores.shape[-1]), first)
        low, high = torch.ones_like(first), first.clone()
        for _ in range(self.scores.shape[-1].bit_length()):
            middle = (low + high + 1) // 2
            before = self._mass_of(torch.minimum(self._ahead(middle - 1, slack), first))
            before = self._counted(before, middle - 1, rule)
            inside = before - (_at(self._mass, middle - 1) if slack < 0 else 0.0) < share
            low, high = torch.where(inside, middle, low), torch.where(inside, high, middle - 1).clamp(min=1)
        return torch.minimum(low, first)

    def kept(self, filters: CoupledSampling, *, rule: TopPRule = CANONICAL, slack: float = 0.0) -> Tensor:
        """Return how many tokens the filters keep, [n]: these are the first ones. `slack`: as in `filtered`."""
        kept = self._first(filters.top_k, slack)
        if filters.top_p < 1.0:
            kept = self.nucleus(filters.top_p, kept, rule=rule, slack=slack)
        if filters.min_p > 0.0:
            least = _least_of_min_p(torch.zeros_like(self._chosen_scores), filters.min_p, slack)
            kept = torch.minimum(kept, self._down_to(least[:, None]))
        return kept

    def _outside(self, filters: CoupledSampling, rule: TopPRule) -> Tensor:
        """Return `Reading.outside`: the largest of the distances to the boundaries of all filters."""
        chosen, place, first = self._chosen_scores, self.ordered.place, self.ordered.first(filters.top_k)
        outside = _impossible(chosen)
        if _cuts_top_k(filters.top_k, self.scores):
            outside = torch.maximum(outside, _half(_least_of_top_k(self.scores, filters.top_k)[:, 0] - chosen))
        if filters.top_p < 1.0:
            inside = self.nucleus(filters.top_p, first, rule=rule)
            before = self._counted(self._before, place, rule)
            past = torch.minimum(before, self._mass_of(first)) / self._share(filters.top_p, first, rule)
            over = torch.minimum(_at(self.scores, inside - 1) - chosen, past.clamp(min=1e-300).log())
            cut = (place >= inside) & (place < first)
            outside = torch.maximum(outside, torch.where(cut, _half(over), 0.0))
        if filters.min_p > 0.0:
            outside = torch.maximum(outside, _half(_least_of_min_p(torch.zeros_like(chosen), filters.min_p) - chosen))
        return outside

    def read(
        self, filters: CoupledSampling, *, rule: TopPRule = CANONICAL, slack: float = OUTSIDE
    ) -> tuple[Tensor, Tensor]:
        """Return log-probabilities of the chosen tokens, and which of them are outside of what is kept, both [n].

        The log-probability of a token outside counts as if nothing were cut off; within `slack` nats, rounding may
        have let it in, and it is not reported as outside.
        """
        kept = self.kept(filters, rule=rule)
        total = torch.where(self.ordered.place < kept, self._mass_of(kept), self._up_to[:, -1])
        return self._chosen_scores - total.log(), self._outside(filters, rule) > slack

    def reading(self, filters: CoupledSampling, *, rule: TopPRule = CANONICAL) -> Reading:
        """Return everything that is known about the chosen tokens."""
        places = torch.arange(self.scores.shape[-1], device=self.scores.device)
        kept = places < self.kept(filters, rule=rule)[:, None]
        chosen = Chosen(self._chosen_scores, self.ordered.place, self._before, self._outside(filters, rule))
        return Reading.of(self.scores, self._mass, kept, chosen)

    def extent(self, top_k: int, *, rule: TopPRule = CANONICAL, slack: float = 0.0) -> dict[str, float] | None:
        """Return each truncation, just wide enough for every chosen token, with its edge `slack` nats further down.

        top-p is computed beside this top-k. None where no token could have been chosen.
        """
        possible = self._chosen_scores > float("-inf")
        if not bool(possible.any()):
            return None
        ahead, first = self._ahead(self.ordered.place, slack), self._first(top_k, slack)
        among = possible & (rule.joint | (ahead < first))
        before = self._mass_of(torch.minimum(ahead, first)) * math.exp(-slack) if slack else self._before
        share = (self._counted(before, self.ordered.place, rule) / self._share(1.0, first, rule))[among]
        return {
            "top_k": float(ahead[possible].max()) + 1,
            "top_p": min(1.0, float(share.max()) * (1 + 1e-9)) if len(share) else 1.0,
            "min_p": min(1.0, float(self._chosen_scores[possible].min().add(slack).exp()) * (1 - 1e-9)),
        }


def widest(extents: list[dict[str, float]]) -> dict[str, float]:
    """Return the truncations that keep whatever each of these (`Tempered.extent`) keeps."""
    return {name: (min if name == "min_p" else max)(extent[name] for extent in extents) for name in extents[0]}


def untruncated(scores: Tensor, target: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Return `Tempered.read` where nothing is cut off, which needs no order."""
    scores = scores / temperature
    chosen_scores = _at(scores, target)
    return chosen_scores - scores.logsumexp(-1), chosen_scores == float("-inf")


def _at(columns: Tensor, place: Tensor) -> Tensor:
    return columns.gather(-1, place[:, None])[:, 0]


def _impossible(chosen: Tensor) -> Tensor:
    """Return inf for tokens that no error lets in, 0 for the others."""
    return torch.where(chosen == float("-inf"), float("inf"), torch.zeros_like(chosen))


def _half(gap: Tensor) -> Tensor:
    """Return half of the gap, because both the token and the boundary may move by the error."""
    return gap.clamp(min=0.0) / 2
