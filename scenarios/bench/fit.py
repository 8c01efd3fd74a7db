"""The sampling parameters under which the reference makes the choices that an engine made: as few as explain them.

With a common noise every choice is a constraint: the chosen token has the largest perturbed logit. What the choices
fall short of that, in nats and summed, is zero at the parameters that made them. In 1/T each term is a maximum of
linear functions less a linear one, hence convex: one valley to go down. In the filters it is a step function, so a
coarse grid comes first.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from scenarios.bench.case import Fitted, Values
from scenarios.rollout.coupling import Draw, filtered

BARRED = 5.0  # nats that a choice counts which the parameters do not allow at all
MOST = 3  # parameters at once
PROMISING = 0.6  # of the whole: what the best one alone may leave for larger sets to be tried
NEAR = 0.35  # of the whole: what the best point of a larger set's grid may leave for a descent from it
LEAST_EACH = 3  # wrong choices for each parameter of a larger set: a few can be met by chance
SECONDS = 20.0  # for the search of larger and larger sets
HALVINGS = 12  # of a step: 0.05 to 0.00001


@dataclass(frozen=True)
class Axis:
    """One parameter: the values of the coarse grid, the first step of the descent, the least and the most."""

    grid: tuple[float, ...]
    step: float
    least: float
    most: float


AXES = {
    "temperature": Axis((0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0, 1.05, 1.1, 1.2, 1.5), 0.05, 0.01, 100.0),
    "top_p": Axis((1.0, 0.95, 0.9, 0.8, 0.7, 0.6, 0.5), 0.05, 0.01, 1.0),
    "top_k": Axis((-1, 5, 10, 20, 30, 40, 50, 100), 8, 1, 1 << 20),
    "min_p": Axis((0.0, 0.02, 0.05, 0.1, 0.2), 0.02, 0.0, 0.99),
}


@dataclass(frozen=True)
class Choices:
    """What was chosen at n positions. `logits`: raw, [n, vocabulary], ids that may not be drawn yet at -inf; `noise`:
    [n, vocabulary] float64; `chosen`: [n] int64; `margin`: nats of logits/T that decide nothing."""

    logits: Tensor
    noise: Tensor
    chosen: Tensor
    asked: Draw
    margin: float

    def gaps(self, values: Values) -> Tensor:
        """[wrong] nats by which another token is preferred, at the choices that these parameters do not make."""
        scores = filtered(self.logits, replace(self.asked, **values)) + self.noise
        gap = scores.max(-1).values - scores.gather(-1, self.chosen[:, None])[:, 0]
        return gap[gap > self.margin].clamp(max=BARRED)

    def short(self, values: Values) -> float:
        """The sum of the gaps."""
        return float(self.gaps(values).sum())


def fit(
    choices: Choices,
    names: tuple[str, ...],
    *,
    seconds: float = SECONDS,
    clock: Callable[[], float] = time.monotonic,
) -> list[Fitted]:
    """The sets of parameters of the smallest size under which nothing falls short. Where none of at most `MOST` is
    found in time: the single ones that come nearer, the nearest first. [] when nothing falls short as it was asked."""
    with _one_thread():
        return _fit(choices, names, seconds, clock)


def _fit(choices: Choices, names: tuple[str, ...], seconds: float, clock: Callable[[], float]) -> list[Fitted]:
    deadline, whole, wrong = clock() + seconds, choices.short({}), len(choices.gaps({}))
    nearer: list[tuple[float, Values]] = []
    for size in range(1, MOST + 1) if whole else ():
        found = []
        for some in itertools.combinations(names, size):
            if clock() > deadline:
                break
            short, values = _coarse(choices, some)
            if size == 1 or short < NEAR * whole:
                short, values = _descend(choices, short, values)
            if not short:
                found.append(_bounded(choices, _rounded(choices, values)))
            elif size == 1 and short < whole:
                nearer.append((short, values))
        if found:
            return found
        hopeless = min((short for short, _ in nearer), default=whole) > PROMISING * whole
        if hopeless or wrong < LEAST_EACH * (size + 1):
            break
    return [Fitted(values, {}) for _, values in sorted(nearer, key=lambda one: one[0])]


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """A thousand small operations: more threads only wait for each other (measured: 15 times the CPU time with two)."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _coarse(choices: Choices, names: tuple[str, ...]) -> tuple[float, Values]:
    """The best point of the grid."""
    points = itertools.product(*(AXES[name].grid for name in names))
    return min(
        ((choices.short(values), values) for point in points for values in [dict(zip(names, point, strict=True))]),
        key=lambda one: one[0],
    )


def _descend(choices: Choices, short: float, values: Values) -> tuple[float, Values]:
    """From there along one parameter after another, in steps that halve."""
    for halving in range(HALVINGS):
        moved = True
        while short and moved:
            moved = False
            for name, way in itertools.product(values, (-1, 1)):
                other = {**values, name: _moved(name, values[name], way, halving)}
                nearer = choices.short(other)
                if nearer < short:
                    short, values, moved = nearer, other, True
    return short, values


def _moved(name: str, value: float, way: int, halving: int) -> float:
    axis = AXES[name]
    step = axis.step / 2**halving
    if name == "top_k":
        return int(max(axis.least, value + way * max(1, round(step)))) if value > 0 else value  # off stays off
    return min(axis.most, max(axis.least, value + way * step))


def _rounded(choices: Choices, values: Values) -> Values:
    """The same with as few decimals as explain the choices as well: what somebody will have written."""
    for name, value in values.items():
        for digits in (1, 2, 3, 4):
            other = {**values, name: round(value, digits)}
            if name != "top_k" and other[name] >= AXES[name].least and not choices.short(other):
                values = other
                break
    return values


def _bounded(choices: Choices, values: Values) -> Fitted:
    """How far each value can be moved while nothing falls short, found by halving; nowhere where it is switched off."""
    bounds = {}
    for name, value in values.items():
        if value <= 0:
            continue
        axis = AXES[name]
        ends = []
        for end in (max(axis.least, value / 4), min(axis.most, value * 4 if name != "top_p" else 1.0)):
            good, bad = value, end
            for _ in range(HALVINGS):
                middle = (good + bad) / 2
                other = {**values, name: round(middle) if name == "top_k" else middle}
                good, bad = (good, middle) if choices.short(other) else (middle, bad)
            ends.append(round(good) if name == "top_k" else good)
        bounds[name] = (ends[0], ends[1])
    return Fitted(values, bounds)
