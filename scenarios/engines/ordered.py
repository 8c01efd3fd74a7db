"""Chosen tokens among all others, from the likeliest down: what every temperature and every truncation share.

The order of the tokens of a position does not depend on the temperature, and what top-k, top-p and min-p keep is always
the first so many of them. Sorted once, other values cost an exponential and a sum. The meaning is that of
`coupling.filtered`, which sorts for each.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor


class Filters(Protocol):
    """What cuts tokens off: a `Sampling`, a `Draw`."""

    @property
    def top_k(self) -> int: ...
    @property
    def top_p(self) -> float: ...
    @property
    def min_p(self) -> float: ...


OUTSIDE = 1e-3  # nats; a token nearer to the boundary may have been let in by rounding
OUTSIDE_HALF = 0.05  # in half precision: the cap on what it rounds by (harness.parity.facts.floor)


@dataclass(frozen=True)
class Ordered:
    """`scores`: [n, vocabulary], descending, before any temperature; `order`: the tokens in that order; `place`: of the
    chosen token, from 0, [n]."""

    scores: Tensor
    order: Tensor
    place: Tensor
    _firsts: dict[int, Tensor] = field(default_factory=dict)

    @staticmethod
    def of(scores: Tensor, target: Tensor) -> Ordered:
        """Of equal scores those of lower ids come first."""
        ordered, order = torch.sort(scores, dim=-1, descending=True, stable=True)
        return Ordered(ordered, order, (order == target[:, None]).int().argmax(-1))

    def first(self, top_k: int) -> Tensor:
        """How many tokens top-k keeps, [n]: those as likely as its last one too."""
        if top_k not in self._firsts:
            size = self.scores.shape[-1]
            every = torch.full_like(self.place, size)
            cut = 0 < top_k < size
            self._firsts[top_k] = (self.scores >= self.scores[:, top_k - 1 : top_k]).sum(-1) if cut else every
        return self._firsts[top_k]


@dataclass(frozen=True)
class Tempered:
    """The same at one temperature, in nats below the likeliest token."""

    ordered: Ordered
    temperature: float

    @cached_property
    def scores(self) -> Tensor:
        raw = self.ordered.scores
        return raw.sub(raw[:, :1]).div_(self.temperature)

    @cached_property
    def _mass(self) -> Tensor:
        return self.scores.exp()

    @cached_property
    def _up_to(self) -> Tensor:
        """Mass of each token and of all before it, in units of the likeliest one's."""
        return self._mass.cumsum(-1)

    @cached_property
    def _below(self) -> Tensor:
        """Nats below the likeliest token, ascending."""
        return -self.scores

    def _ahead(self, place: Tensor, slack: float) -> Tensor:
        """How many tokens are likelier than these by more than `slack` nats, both [n]."""
        return torch.searchsorted(self._below, (_at(self._below, place) - slack)[:, None])[:, 0]

    def _mass_of(self, first: Tensor) -> Tensor:
        """The mass of so many tokens, the likeliest ones, [n]."""
        return torch.where(first > 0, _at(self._up_to, (first - 1).clamp(min=0)), 0.0)

    @cached_property
    def _own(self) -> Tensor:
        return _at(self.scores, self.ordered.place)

    @cached_property
    def _before(self) -> Tensor:
        return _at(self._up_to, self.ordered.place) - _at(self._mass, self.ordered.place)

    def _first(self, top_k: int, slack: float = 0.0) -> Tensor:
        """How many tokens top-k keeps, [n], its last one `slack` nats further down."""
        if not slack or not 0 < top_k < self.scores.shape[-1]:
            return self.ordered.first(top_k)
        last = (self._below[:, top_k - 1 : top_k] + slack).clamp(min=0.0)
        return torch.searchsorted(self._below, last, right=True)[:, 0]

    def _whole(self, first: Tensor, joint: bool) -> Tensor:
        """The mass of which top-p takes a share."""
        return self._up_to[:, -1] if joint else self._mass_of(first)

    def kept(self, filters: Filters, *, joint: bool = False, slack: float = 0.0) -> Tensor:
        """How many tokens the filters leave, [n]: the first of them. `slack`: as in `coupling.filtered`."""
        first = kept = self._first(filters.top_k, slack)
        if filters.top_p < 1.0:
            share = filters.top_p * math.exp(slack) * self._whole(first, joint)
            kept = torch.minimum(kept, self._moved_nucleus(share, first, slack) if slack else self._nucleus(share))
        if filters.min_p > 0.0:
            least = torch.full_like(self._own, max(slack - math.log(filters.min_p), 0.0))[:, None]
            kept = torch.minimum(kept, torch.searchsorted(self._below, least, right=True)[:, 0])
        return kept

    def read(self, filters: Filters, *, joint: bool = False, slack: float = OUTSIDE) -> tuple[Tensor, Tensor]:
        """Log-probabilities of the chosen tokens, and which of them lie outside of what is kept, both [n].

        A token that only rounding of `slack` nats left outside counts as if nothing were cut off.
        """
        own, place = self._own, self.ordered.place
        beyond = torch.where(own == float("-inf"), float("inf"), torch.zeros_like(own))
        first = self.ordered.first(filters.top_k)
        if 0 < filters.top_k < self.scores.shape[-1]:
            beyond = torch.maximum(beyond, _half(self.scores[:, filters.top_k - 1] - own))
        if filters.top_p < 1.0:
            share = filters.top_p * self._whole(first, joint)
            inside = torch.minimum(self._nucleus(share), first)
            past = torch.minimum(self._before, _at(self._up_to, first - 1)) / share
            over = torch.minimum(_at(self.scores, inside - 1) - own, past.clamp(min=1e-300).log())
            cut = (place >= inside) & (place < first)
            beyond = torch.maximum(beyond, torch.where(cut, _half(over), 0.0))
        if filters.min_p > 0.0:
            beyond = torch.maximum(beyond, _half(math.log(filters.min_p) - own))
        kept = self.kept(filters, joint=joint)
        total = torch.where(place < kept, _at(self._up_to, kept - 1), self._up_to[:, -1])
        return own - total.log(), beyond > slack

    def _nucleus(self, share: Tensor) -> Tensor:
        """How many tokens there are before which less than this mass stands."""
        return (torch.searchsorted(self._up_to, share[:, None])[:, 0] + 1).clamp(max=self.scores.shape[-1])

    def _moved_nucleus(self, share: Tensor, first: Tensor, slack: float) -> Tensor:
        """The same of the `first` tokens where only those count before a token that are ahead of it by more than
        `slack`; below 0, those too that are behind it by less. Found by halving: the mass before grows along them."""
        low, high = torch.ones_like(first), first.clone()
        for _ in range(self.scores.shape[-1].bit_length()):
            middle = (low + high + 1) // 2
            before = self._mass_of(torch.minimum(self._ahead(middle - 1, slack), first))
            inside = before - (_at(self._mass, middle - 1) if slack < 0 else 0.0) < share
            low, high = torch.where(inside, middle, low), torch.where(inside, high, middle - 1).clamp(min=1)
        return low

    def extent(self, top_k: int, *, joint: bool = False, slack: float = 0.0) -> dict[str, float] | None:
        """Each truncation just wide enough for every token that was chosen, with its edge `slack` nats further down;
        top-p beside this top-k. None where no token could have been chosen.
        """
        possible = self._own > float("-inf")
        if not bool(possible.any()):
            return None
        ahead, first = self._ahead(self.ordered.place, slack), self._first(top_k, slack)
        among = possible & (joint | (ahead < first))
        before = self._mass_of(torch.minimum(ahead, first)) * math.exp(-slack) if slack else self._before
        share = (before / self._whole(first, joint))[among]
        return {
            "top_k": float(ahead[possible].max()) + 1,
            "top_p": min(1.0, float(share.max()) * (1 + 1e-9)) if len(share) else 1.0,
            "min_p": min(1.0, float(self._own[possible].min().add(slack).exp()) * (1 - 1e-9)),
        }


def untruncated(scores: Tensor, target: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """`Tempered.read` where nothing is cut off, which needs no order."""
    scores = scores / temperature
    own = _at(scores, target)
    return own - scores.logsumexp(-1), own == float("-inf")


def _at(columns: Tensor, place: Tensor) -> Tensor:
    return columns.gather(-1, place[:, None])[:, 0]


def _half(gap: Tensor) -> Tensor:
    """Both the token and the boundary may move by the error."""
    return gap.clamp(min=0.0) / 2
