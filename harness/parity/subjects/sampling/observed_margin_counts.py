"""Counts of a learner's margins of kinds that should be rare; `observed_margins` says how many are too many."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from harness.parity.facts.align import Grid
from harness.parity.facts.tally import Tally
from harness.parity.subjects.log_probabilities.observed_metrics import SIZEABLE
from harness.parity.subjects.precision.observed_floor import Tolerance
from harness.parity.subjects.precision.observed_rounding import both
from harness.recordings.tables import Rows, Table

_LOW_BITS = np.uint64(32)  # bits of a packed key for the place; the bits above hold the margin


@dataclass(frozen=True)
class Margins(Tally):
    """The margins of one learner, counted: those of a step, or those of the run."""

    every: int = 0
    finite: int = 0
    near: int = 0  # ties
    distinct: int = 0  # finite ones; repeats at one token and position count once (greedy samples repeat)
    repeated: int = 0  # of the distinct ones: repeats of each step's most frequent value
    edges: int = 0  # infinite, although another token is left
    probable: int = 0  # greedy choices that are likelier than all other tokens together
    itself: int = 0  # margins whose other token is the chosen one
    others: int = 0  # margins that name another token
    other: int = 0  # of those: each step's most frequent other token
    chosen: int = 0  # of those: each step's most frequent choice
    narrow: int = 0  # of `probable`: those whose gap is smaller than their probability allows

    @staticmethod
    def of(table: Table, margin: Rows, tolerance: Tolerance, mode: str) -> Margins:
        """Count one step's margins. `mode`: how its samples were drawn."""
        values = margin.values
        finite = np.isfinite(values)
        columns = both(table, "tokens", "margin", "runner_up")
        at_finite = slice(None) if finite.all() else finite
        near = int(np.count_nonzero(np.abs(values[at_finite]) <= tolerance.margin))
        margins = Margins(every=len(values), finite=int(np.count_nonzero(finite)), near=near)
        if columns is None:
            margins += _repeats(np.sort(values[at_finite]))
        else:
            tokens, runner_up = columns[0].values, columns[2].values
            margins += _runners_up(tokens, runner_up)
            if not finite.all():
                margins += Margins(edges=int(np.count_nonzero(np.isposinf(values) & (runner_up >= 0))))
            position = Grid(margin.lengths).position
            margins += _repeats(_once_per_place(position[at_finite], tokens[at_finite], values[at_finite]))
        greedy = both(table, "margin", "actor_logprob") if mode == "greedy" else None
        if greedy is not None:
            margins += _narrow(greedy[1].values.astype(np.float64), greedy[0].values, tolerance.value)
        return margins


def _repeats(distinct: np.ndarray) -> Margins:
    """Count repeats. `distinct`: sorted margins, or sorted codes of them."""
    return Margins(distinct=len(distinct), repeated=max(0, _longest_run(distinct) - 1))


def _runners_up(chosen: np.ndarray, runner_up: np.ndarray) -> Margins:
    """Count the best other token at each place; `runner_up` is negative where there is none."""
    named = runner_up >= 0
    return Margins(
        itself=int(np.count_nonzero(named & (runner_up == chosen))),
        others=int(np.count_nonzero(named)),
        other=_longest_run(np.sort(runner_up[named])),
        chosen=_longest_run(np.sort(chosen[named])),
    )


def _narrow(logprob: np.ndarray, margin: np.ndarray, tolerance: float) -> Margins:
    """Count greedy gaps that are smaller than the choice's probability allows, within `tolerance` nats of it."""
    at = (logprob > np.log(0.5)) & (logprob < -SIZEABLE)
    remaining_mass = -np.expm1(logprob[at])
    least = logprob[at] - np.log(remaining_mass) - tolerance / remaining_mass
    return Margins(probable=int(np.count_nonzero(at)), narrow=int(np.count_nonzero(margin[at] < least)))


def _once_per_place(position: np.ndarray, token: np.ndarray, margin: np.ndarray) -> np.ndarray:
    """Return sorted codes of the margins, each once for its token and position. Equal margins have equal codes.

    Both parts of a key fit into one integer, which sorts a hundred times faster than rows of three columns.
    """
    if not len(margin):
        return margin
    token_code = _codes(token)
    place = position.astype(np.uint64) * (token_code.max() + np.uint64(1)) + token_code
    keys = np.sort(_codes(margin) << _LOW_BITS | _codes(place))
    return np.append(keys[:-1][keys[1:] != keys[:-1]], keys[-1]) >> _LOW_BITS


def _codes(values: np.ndarray) -> np.ndarray:
    """Return an integer below 2^32 for each value, equal for equal values: the value itself or its bits, where they
    fit.
    """
    if values.dtype == np.float32:
        return (values + np.float32(0)).view(np.uint32).astype(np.uint64)  # -0 + 0 is 0: one code for both zeros
    if np.issubdtype(values.dtype, np.integer) and values.min() >= 0 and values.max() < 1 << 32:
        return values.astype(np.uint64)
    codes: np.ndarray = np.unique(values, return_inverse=True)[1].astype(np.uint64)
    return codes


def _longest_run(ordered: np.ndarray) -> int:
    """Return how often the most frequent of sorted values occurs; 0 where there are none."""
    begins = np.flatnonzero(ordered[1:] != ordered[:-1]) + 1
    return int(np.diff(begins, prepend=0, append=len(ordered)).max())
