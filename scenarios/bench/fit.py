"""The sampling parameters under which the reference makes the choices that an engine made: as few as explain them.

With a common noise every choice is a constraint: the chosen token has the largest perturbed logit. What the choices
fall short of that, in nats and summed, is zero at the parameters that made them. In 1/T each term is a maximum of
linear functions less a linear one, hence convex: one valley to go down. In one filter it is a step function, so a
coarse grid comes first. Several filters need no search: whatever explains the choices, the narrowest filters that leave
each chosen token in do so too, for they leave fewer others. Only a top-k beside a top-p is tried in several widths, for
top-p takes its share of what top-k left.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from scenarios.bench.case import Fitted, Values
from scenarios.engines import canonical
from scenarios.engines.canonical import AXES
from scenarios.engines.coupling import Draw
from scenarios.engines.penalties import PENALTIES, Occurred, penalised
from scenarios.engines.sampling import Ordered, Tempered, filtered
from scenarios.peak import peak

BARRED = 5.0  # nats that a choice counts which the parameters do not allow at all
MOST = 3  # parameters at once
PROMISING = 0.6  # of the whole: what the best one alone may leave for larger sets to be tried
NARROW = 1e-5  # share to which a temperature is sought beside filters
# Widths of a top-k beside a top-p: so many more than the narrowest, or so many times it.
WIDER = [*((more, 1.0) for more in range(10)), *((0, factor) for factor in (1.2, 1.35, 1.5, 1.75, 2, 2.5, 3, 4, 6))]
OFF: Values = {**{parameter.name: parameter.off for parameter in canonical.FILTERS}, **PENALTIES}
MOSTLY = 3  # of so many wrong choices one may be rounding's: what parameters explain, they explain of most
LEAST_EACH = 3  # wrong choices for each parameter of a larger set: a few can be met by chance
SELDOM = 0.01  # a set that rounding must help more seldom than that is given up for one that it need not
SECONDS = 20.0  # for the search of larger and larger sets
HALVINGS = 12  # of a step: 0.05 to 0.00001


FILTERS = {parameter.name for parameter in canonical.FILTERS}
BESIDE_A_PENALTY = {"temperature"}  # what a penalty is sought with


@dataclass(frozen=True)
class Perturbed:
    """Scores with noise at one temperature: of the chosen token, [n], and the best of the likeliest i + 1, [n, i]."""

    tempered: Tempered
    chosen: Tensor
    best: Tensor


@dataclass(frozen=True)
class Choices:
    """What was chosen at n positions. `logits`: raw, [n, vocabulary], ids that may not be drawn yet at -inf; `noise`:
    [n, vocabulary] float64; `chosen`: [n] int64; `margin`: nats of logits/T that decide nothing; `occurred`: what a
    penalty covers, where one may be looked for. What half precision adds: `edge`, the nats of logits/T by which the
    edge of a filter may lie elsewhere at any position; `farthest`, by which it may at a few; `far`, the margin at
    those, at the temperature that was asked; `far_count`, their number; `turned`, the share of all choices that they
    are expected to be."""

    logits: Tensor
    noise: Tensor
    chosen: Tensor
    requested: Draw
    margin: float
    occurred: Occurred | None = None
    edge: float = 0.0
    farthest: float = 0.0
    far: float = 0.0
    far_count: int = 0
    turned: float = 0.0
    _last: list[Perturbed] = field(default_factory=list)

    @cached_property
    def _ordered(self) -> tuple[Ordered, Tensor]:
        """The logits, and their noise in that order."""
        ordered = Ordered.of(self.logits.double(), self.chosen)
        return ordered, self.noise.gather(-1, ordered.order)

    def at(self, temperature: float) -> Perturbed:
        """The last one is kept: a search tries many filters at one temperature."""
        if not self._last or self._last[0].tempered.temperature != temperature:
            ordered, noise = self._ordered
            tempered = Tempered(ordered, temperature)
            scores = tempered.scores + noise
            chosen_scores = scores.gather(-1, ordered.place[:, None])[:, 0]
            self._last[:] = [Perturbed(tempered, chosen_scores, scores.cummax(-1).values)]
        return self._last[0]

    def gaps(self, values: Values) -> Tensor:
        """[wrong] nats by which another token is preferred, at the choices that these parameters do not make."""
        gap = self._gap(values, self.edge)
        return gap[gap > self.margin].clamp(max=BARRED)

    def _gap(self, values: Values, edge: float) -> Tensor:
        """[n] nats by which another token is preferred, negative where none is. A token counts as one that may be
        chosen, and not as one that is preferred, within `edge` of that of a filter."""
        penalties = {name: value for name, value in values.items() if name in PENALTIES}
        draw = replace(self.requested, **{name: value for name, value in values.items() if name not in PENALTIES})
        if penalties:
            return self._penalised(penalties, draw, edge)
        at = self.at(draw.temperature)
        narrow = wide = at.tempered.kept(draw, joint=draw.joint, slack=-edge)
        if edge:
            wide = at.tempered.kept(draw, joint=draw.joint, slack=edge)
        gap = at.best.gather(-1, narrow[:, None] - 1)[:, 0] - at.chosen
        return torch.where(at.tempered.ordered.place < wide, gap, float("inf"))

    def _penalised(self, penalties: Values, draw: Draw, edge: float) -> Tensor:
        """The same after penalties, which change the order of the tokens."""
        assert self.occurred is not None
        logits = penalised(self.logits, self.occurred, **penalties)
        narrow, wide = (filtered(logits, draw, by) + self.noise for by in (-edge, edge))
        return narrow.amax(-1) - wide.gather(-1, self.chosen[:, None])[:, 0]

    def short(self, values: Values) -> float:
        """The sum of the gaps, without the `far_count` widest of those that rounding can have turned: with the edges of
        filters, and logits, as far off as it takes any, nothing else is preferred there."""
        gap = self._gap(values, self.edge)
        wrong = gap > self.margin
        gaps = gap.clamp(max=BARRED)
        if not self.far_count or not bool(wrong.any()):
            return float(gaps[wrong].sum())
        far = self.far * self.requested.temperature / float(values.get("temperature", self.requested.temperature))
        turned = wrong & (self._gap(values, self.farthest) <= max(far, self.margin))
        spared = torch.where(turned, gaps, 0.0).topk(min(self.far_count, len(gaps))).indices
        wrong[spared[turned[spared]]] = False
        return float(gaps[wrong].sum())

    def by_chance(self, wrong: int) -> bool:
        """Whether rounding may turn as many choices: more often than once in a hundred runs (Poisson counts)."""
        expected = self.turned * len(self.chosen)
        fewer = sum(math.exp(-expected) * expected**count / math.factorial(count) for count in range(wrong))
        return 1.0 - fewer >= SELDOM


def fit(
    choices: Choices,
    names: tuple[str, ...],
    *,
    seconds: float = SECONDS,
    clock: Callable[[], float] = time.monotonic,
) -> list[Fitted]:
    """The sets of parameters of the smallest size under which nothing falls short; where rounding turns some choices
    over, those that leave about as few of them wrong as the best. Where they leave more than rounding is likely to
    turn, those of a larger size that do not.

    Where none of at most `MOST` is found in time: the single ones that come nearer, the nearest first. [] when nothing
    falls short as it was asked.
    """
    with _one_thread():
        wrong = len(choices.gaps({}))
        spared = replace(choices, far_count=min(choices.far_count, wrong // MOSTLY))
        return _fit(spared, names, seconds, clock)


def _fit(choices: Choices, names: tuple[str, ...], seconds: float, clock: Callable[[], float]) -> list[Fitted]:
    deadline, shortfall, wrong = clock() + seconds, choices.short({}), len(choices.gaps({}))
    nearer: list[tuple[float, Values]] = []
    best: list[Fitted] = []
    for size in range(1, MOST + 1) if shortfall else ():
        settled = []
        for short, values in _fitted(choices, names, size, lambda: clock() > deadline):
            if not short:
                settled.append(_settled(choices, values))
            elif size == 1 and short < shortfall:
                nearer.append((short, values))
        if settled:
            fewest = min(misses for misses, _ in settled)
            likely = choices.by_chance(fewest)
            some_best = [fitted for misses, fitted in settled if misses <= 2 * fewest + 1]
            if not best or (likely and _needs_less(choices, some_best, best)):
                best = some_best
            if likely:
                break
        hopeless = not best and min((short for short, _ in nearer), default=shortfall) > PROMISING * shortfall
        if hopeless or wrong < LEAST_EACH * (size + 1):
            break
    return best or [Fitted(values) for _, values in sorted(nearer, key=lambda candidate: candidate[0])]


def _fitted(
    choices: Choices, names: tuple[str, ...], size: int, late: Callable[[], bool]
) -> Iterator[tuple[float, Values]]:
    """The best values of each set of so many parameters, with what falls short under them, until it is late."""
    for subset in itertools.combinations(names, size):
        if late():
            return
        yield _alone(choices, subset[0]) if size == 1 else _together(choices, subset)


def _needs_less(choices: Choices, larger: list[Fitted], smaller: list[Fitted]) -> bool:
    """Whether each parameter more sets so many choices right, without any rounding, that they are not met by chance."""
    plain = replace(choices, edge=0.0, far_count=0)
    after, before = (min(len(plain.gaps(fitted.values)) for fitted in fits) for fits in (larger, smaller))
    return before - after >= LEAST_EACH * (len(larger[0].values) - len(smaller[0].values))


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """A thousand small operations: more threads only wait for each other (measured: 15 times the CPU time with two)."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _alone(choices: Choices, name: str) -> tuple[float, Values]:
    """What falls short at the best value of one parameter, and the value."""
    tried = [(choices.short({name: value}), {name: value}) for value in AXES[name].grid]
    if name in FILTERS:  # where one explains every choice, the narrowest does: a search in steps may miss it
        tried.append(_narrowest(choices, (name,), choices.requested.temperature))
    return _descend(choices, *min(tried, key=lambda candidate: candidate[0]))


def _together(choices: Choices, names: tuple[str, ...]) -> tuple[float, Values]:
    """The same of several parameters: the filters at their narrowest, the temperature at its best for them."""
    if set(PENALTIES).intersection(names):
        return _penalties(choices, names)
    if "temperature" not in names:
        return _narrowest(choices, names, choices.requested.temperature)
    grid = AXES["temperature"].grid
    tried = [_narrowest(choices, names, temperature) for temperature in grid]
    best = min(range(len(grid)), key=lambda at: tried[at][0])
    if not tried[best][0]:
        return tried[best]
    place = peak(
        lambda temperature: -_narrowest(choices, names, temperature)[0],
        grid[max(0, best - 1)], grid[min(best + 1, len(grid) - 1)], NARROW, enough=0.0,
    )  # fmt: skip
    return min(tried[best], _narrowest(choices, names, place), key=lambda candidate: candidate[0])


def _penalties(choices: Choices, names: tuple[str, ...]) -> tuple[float, Values]:
    """The same of one penalty beside a temperature; of other sets nothing."""
    if len(set(PENALTIES).intersection(names)) > 1 or not set(names) - set(PENALTIES) <= BESIDE_A_PENALTY:
        return math.inf, {}
    grids = [AXES[name].grid for name in names]
    tried = [dict(zip(names, values, strict=True)) for values in itertools.product(*grids)]
    return _descend(
        choices, *min(((choices.short(setting), setting) for setting in tried), key=lambda candidate: candidate[0])
    )


def _narrowest(choices: Choices, names: tuple[str, ...], temperature: float) -> tuple[float, Values]:
    """These filters, each just wide enough for every chosen token."""
    settings, tempered = choices.requested, choices.at(temperature).tempered
    tried = []
    for slack in {0.0, choices.edge, choices.farthest}:
        widest = tempered.extent(settings.top_k, joint=settings.joint, slack=slack)
        if widest is None:
            return math.inf, {}
        narrow, size = int(widest["top_k"]), choices.logits.shape[-1]
        wider = {min(size, max(narrow + more, round(narrow * factor))) for more, factor in WIDER} - {narrow}
        ks = [narrow, *sorted(wider if "top_p" in names else ())] if "top_k" in names else [settings.top_k]
        for k in ks:
            beside = tempered.extent(k, joint=settings.joint, slack=slack)
            assert beside is not None
            best: Values = {**widest, "temperature": temperature, "top_k": k, "top_p": beside["top_p"]}
            values = {name: best[name] for name in names}
            tried.append((choices.short(values), values))
    return min(tried, key=lambda candidate: candidate[0])


def _descend(choices: Choices, short: float, values: Values) -> tuple[float, Values]:
    """From there along each parameter, in steps that halve."""
    for halving in range(HALVINGS):
        moved = True
        while short and moved:
            moved = False
            for name, way in itertools.product(values, (-1, 1)):
                neighbour = {**values, name: _moved(name, values[name], way, halving)}
                nearer = choices.short(neighbour)
                if nearer < short:
                    short, values, moved = nearer, neighbour, True
    return short, values


def _moved(name: str, value: float, way: int, halving: int) -> float:
    axis = AXES[name]
    step = axis.step / 2**halving
    if name == "top_k":
        return int(max(axis.least, value + way * max(1, round(step)))) if value > 0 else value  # off stays off
    return min(axis.most, max(axis.least, value + way * step))


def _settled(choices: Choices, values: Values) -> tuple[int, Fitted]:
    """The values near by that explain the most choices, as somebody may have written them, and how many stay wrong.

    No more than these stay spared: rounding turns over few choices at the values that made them, and more at others.
    """
    strict_choices = replace(choices, far_count=0)
    _, values = _descend(strict_choices, strict_choices.short(values), values)
    misses = len(strict_choices.gaps(values))
    spared = replace(choices, far_count=misses)
    return misses, _bounded(spared, _rounded(spared, values))


def _rounded(choices: Choices, values: Values) -> Values:
    """The same switched off, or with as few decimals as explain the choices as well: what somebody will have written.

    Twice: one that was rounded may leave room for another.
    """
    for name in (*values, *values):
        simpler = [OFF[name]] if name in OFF else []
        simpler += [round(values[name], digits) for digits in (1, 2, 3, 4) if name != "top_k"]
        for value in simpler:
            trial = {**values, name: value}
            if (value == OFF.get(name) or AXES[name].least <= value) and not choices.short(trial):
                values = trial
                break
    return values


def _bounded(choices: Choices, values: Values) -> Fitted:
    """How far each value can be moved while nothing falls short, found by halving; nowhere where it is switched off."""
    bounds = {}
    for name, value in values.items():
        if value == OFF.get(name):
            continue
        axis = AXES[name]
        ends = []
        for end in sorted((value / 4, value * 4 if name != "top_p" else 1.0)):  # a penalty may be negative
            good, bad = value, min(axis.most, max(axis.least, end))
            for _ in range(HALVINGS):
                middle = (good + bad) / 2
                trial = {**values, name: round(middle) if name == "top_k" else middle}
                good, bad = (good, middle) if choices.short(trial) else (middle, bad)
            ends.append(round(good) if name == "top_k" else good)
        bounds[name] = (ends[0], ends[1])
    return Fitted(values, bounds, complete=True)
