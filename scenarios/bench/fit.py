"""Finds the sampling parameters under which the reference makes the choices of an engine: as few parameters as
possible.

With common noise, every choice is a constraint: the chosen token has the largest perturbed logit. The shortfall, the
sum in nats by which choices violate it, is zero at the parameters that made the choices. In 1/T each term is a
maximum of linear functions minus a linear function, hence convex, and descent finds the minimum. In one filter the
shortfall is a step function, so a coarse grid is tried first. Several filters need no search: if some filters explain
the choices, the narrowest ones that keep each chosen token do too, because they keep fewer other tokens. Only a top-k
beside a top-p is tried in several widths, because top-p takes its share of what top-k kept.
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
from scenarios.golden_section import peak

BARRED = 5.0  # nats that a choice counts that the parameters do not allow at all
MOST = 3  # most parameters in a set
PROMISING = 0.6  # share of the shortfall that the best single parameter may leave for larger sets to be tried
NARROW = 1e-5  # relative precision of a temperature that is sought beside filters
# Widths of a top-k beside a top-p: added to the narrowest width, or multiplied with it.
WIDER = [*((more, 1.0) for more in range(10)), *((0, factor) for factor in (1.2, 1.35, 1.5, 1.75, 2, 2.5, 3, 4, 6))]
OFF: Values = {**{parameter.name: parameter.off for parameter in canonical.FILTERS}, **PENALTIES}
MOSTLY = 3  # parameters must explain most wrong choices: rounding may account for one in this many
LEAST_EACH = 3  # wrong choices per parameter of a larger set; fewer can be met by chance
SELDOM = 0.01  # a smaller set that needs rounding this rarely gives way to a larger one that does not need it
SECONDS = 20.0  # time limit of the search for larger sets
HALVINGS = 12  # of a step: from 0.05 to 0.00001


FILTERS = {parameter.name for parameter in canonical.FILTERS}
BESIDE_A_PENALTY = {"temperature"}  # the parameters that are fitted together with a penalty


@dataclass(frozen=True)
class Perturbed:
    """Scores with noise at one temperature.

    `chosen`: of the chosen token, [n]. `best`: the largest among the i + 1 likeliest tokens, [n, i].
    """

    tempered: Tempered
    chosen: Tensor
    best: Tensor


@dataclass(frozen=True)
class Choices:
    """The choices of an engine at n positions, and what is needed to explain them.

    `logits`: raw, [n, vocabulary], with ids that may not be drawn yet at -inf. `noise`: [n, vocabulary] float64.
    `chosen`: [n] int64. `requested`: the draw that was asked for. `margin`: differences below this, in nats of
    logits/T, decide nothing. `occurred`: the tokens that a penalty covers, where one may be fitted. The rest is what
    half precision adds. `edge`: nats of logits/T by which the edge of a filter may be shifted at any position.
    `farthest`: by which it may be shifted at a few positions. `far`: the margin at those, at the requested
    temperature. `far_count`: their number. `turned`: the expected share of choices that rounding turns over.
    """

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
        """Return the logits in descending order, and their noise in that order."""
        ordered = Ordered.of(self.logits.double(), self.chosen)
        return ordered, self.noise.gather(-1, ordered.order)

    def at(self, temperature: float) -> Perturbed:
        """Return the scores at a temperature. The last one is kept, because a search tries many filters at one
        temperature.
        """
        if not self._last or self._last[0].tempered.temperature != temperature:
            ordered, noise = self._ordered
            tempered = Tempered(ordered, temperature)
            scores = tempered.scores + noise
            chosen_scores = scores.gather(-1, ordered.place[:, None])[:, 0]
            self._last[:] = [Perturbed(tempered, chosen_scores, scores.cummax(-1).values)]
        return self._last[0]

    def gaps(self, values: Values) -> Tensor:
        """Return [wrong] nats by which another token is preferred, for the choices that these parameters do not
        make.
        """
        gap = self._gap(values, self.edge)
        return gap[gap > self.margin].clamp(max=BARRED)

    def _gap(self, values: Values, edge: float) -> Tensor:
        """Return [n] nats by which another token is preferred; negative where none is.

        Tokens within `edge` of the edge of a filter count in the engine's favour: they may be chosen, but cannot be
        preferred.
        """
        penalties = {name: value for name, value in values.items() if name in PENALTIES}
        draw = replace(self.requested, **{name: value for name, value in values.items() if name not in PENALTIES})
        if penalties:
            return self._penalised(penalties, draw, edge)
        at = self.at(draw.temperature)
        narrow = wide = at.tempered.kept(draw, rule=draw.top_p_rule, slack=-edge)
        if edge:
            wide = at.tempered.kept(draw, rule=draw.top_p_rule, slack=edge)
        gap = at.best.gather(-1, narrow[:, None] - 1)[:, 0] - at.chosen
        return torch.where(at.tempered.ordered.place < wide, gap, float("inf"))

    def _penalised(self, penalties: Values, draw: Draw, edge: float) -> Tensor:
        """Return `_gap` under penalties, which change the order of the tokens."""
        assert self.occurred is not None
        logits = penalised(self.logits, self.occurred, **penalties)
        narrow, wide = (filtered(logits, draw, by) + self.noise for by in (-edge, edge))
        return narrow.amax(-1) - wide.gather(-1, self.chosen[:, None])[:, 0]

    def short(self, values: Values) -> float:
        """Return the shortfall: the sum of the gaps, without the `far_count` widest ones that rounding may have
        turned over.

        Rounding may explain a gap if no other token is preferred there with filters and logits shifted as far as
        rounding can.
        """
        # A token that a filter barred is infinitely far. Bounded, it still lets the search see which values are nearer.
        gap = self._gap(values, self.edge)
        wrong = gap > self.margin
        gaps = gap.clamp(max=BARRED)
        if not self.far_count or not bool(wrong.any()):
            return float(gaps[wrong].sum())
        # A lower temperature stretches logits, and the rounding in them, by as much.
        far = self.far * self.requested.temperature / float(values.get("temperature", self.requested.temperature))
        turned = wrong & (self._gap(values, self.farthest) <= max(far, self.margin))
        spared = torch.where(turned, gaps, 0.0).topk(min(self.far_count, len(gaps))).indices
        wrong[spared[turned[spared]]] = False
        return float(gaps[wrong].sum())

    def by_chance(self, wrong: int) -> bool:
        """Whether rounding may turn over as many choices: probability at least `SELDOM` (Poisson counts)."""
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
    """Return the smallest sets of parameters that explain the choices; [] where the requested parameters do.

    Where rounding turns over some choices, sets count that leave about as few of them wrong as the best set. Where
    those leave more wrong than rounding is likely to turn over, larger sets that do not need rounding are returned
    instead. Where no set of at most `MOST` parameters is found within `seconds`, the single parameters that reduce
    the shortfall are returned, the best first.
    """
    with _one_thread():
        wrong = len(choices.gaps({}))
        spared = replace(choices, far_count=min(choices.far_count, wrong // MOSTLY))
        return _fit(spared, names, seconds, clock)


def _fit(choices: Choices, names: tuple[str, ...], seconds: float, clock: Callable[[], float]) -> list[Fitted]:
    deadline, shortfall, wrong = clock() + seconds, choices.short({}), len(choices.gaps({}))
    nearer: list[tuple[float, Values]] = []
    best: list[Fitted] = []
    if not shortfall:
        return best
    # Smallest sets first: a larger set explains more by its mere size.
    for size in range(1, MOST + 1):
        settled: list[tuple[int, Fitted]] = []
        # Sets that explain every choice are settled: rounded, and counted by what they leave wrong.
        for short, values in _fitted(choices, names, size, lambda: clock() > deadline):
            if not short:
                settled.append(_settled(choices, values))
            elif size == 1 and short < shortfall:
                nearer.append((short, values))
        if settled:
            # Several sets may explain the choices. Keep those that leave about as few wrong choices as the best.
            fewest = min(misses for misses, _ in settled)
            likely = choices.by_chance(fewest)
            some_best = [fitted for misses, fitted in settled if misses <= 2 * fewest + 1]
            if not best or (likely and _needs_less(choices, some_best, best)):
                best = some_best
            if likely:
                break
        # A larger set is worth its time only if one of its parameters alone already removed much of the shortfall,
        # and if there are enough wrong choices to tell it from chance.
        hopeless = not best and min((short for short, _ in nearer), default=shortfall) > PROMISING * shortfall
        if hopeless or wrong < LEAST_EACH * (size + 1):
            break
    return best or [Fitted(values) for _, values in sorted(nearer, key=lambda candidate: candidate[0])]


def _fitted(
    choices: Choices, names: tuple[str, ...], size: int, late: Callable[[], bool]
) -> Iterator[tuple[float, Values]]:
    """Iterate over the best values of each set of `size` parameters, with their shortfall, until it is late."""
    for subset in itertools.combinations(names, size):
        if late():
            return
        yield _alone(choices, subset[0]) if size == 1 else _together(choices, subset)


def _needs_less(choices: Choices, larger: list[Fitted], smaller: list[Fitted]) -> bool:
    """Whether the larger set corrects so many more choices without any rounding that chance does not explain it."""
    plain = replace(choices, edge=0.0, far_count=0)
    after, before = (min(len(plain.gaps(fitted.values)) for fitted in fits) for fits in (larger, smaller))
    return before - after >= LEAST_EACH * (len(larger[0].values) - len(smaller[0].values))


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Use one torch thread: for a thousand small operations, more threads only wait (measured: 15 times the CPU time
    with two).
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _alone(choices: Choices, name: str) -> tuple[float, Values]:
    """Return the shortfall at the best value of one parameter, and that value."""
    tried = [(choices.short({name: value}), {name: value}) for value in AXES[name].grid]
    if name in FILTERS:  # a search in steps may miss it
        tried.append(_narrowest(choices, (name,), choices.requested.temperature))
    return _descend(choices, *min(tried, key=lambda candidate: candidate[0]))


def _together(choices: Choices, names: tuple[str, ...]) -> tuple[float, Values]:
    """Return the same for several parameters: the narrowest filters, and the best temperature for them."""
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
    """Return the same for one penalty beside a temperature; (inf, {}) for other sets, which are not searched."""
    if len(set(PENALTIES).intersection(names)) > 1 or not set(names) - set(PENALTIES) <= BESIDE_A_PENALTY:
        return math.inf, {}
    grids = [AXES[name].grid for name in names]
    tried = [dict(zip(names, values, strict=True)) for values in itertools.product(*grids)]
    return _descend(
        choices, *min(((choices.short(setting), setting) for setting in tried), key=lambda candidate: candidate[0])
    )


def _narrowest(choices: Choices, names: tuple[str, ...], temperature: float) -> tuple[float, Values]:
    """Return the shortfall and values of these filters, each just wide enough for every chosen token."""
    settings, tempered = choices.requested, choices.at(temperature).tempered
    tried = []
    # Rounding may have let a chosen token in, so the filters are also tried as if their edges were further out.
    for slack in {0.0, choices.edge, choices.farthest}:
        widest = tempered.extent(settings.top_k, rule=settings.top_p_rule, slack=slack)
        if widest is None:
            return math.inf, {}
        narrow, size = int(widest["top_k"]), choices.logits.shape[-1]
        wider = {min(size, max(narrow + more, round(narrow * factor))) for more, factor in WIDER} - {narrow}
        ks = [settings.top_k]
        if "top_k" in names:
            ks = [narrow, *sorted(wider)] if "top_p" in names else [narrow]
        for k in ks:
            beside = tempered.extent(k, rule=settings.top_p_rule, slack=slack)
            assert beside is not None
            best: Values = {**widest, "temperature": temperature, "top_k": k, "top_p": beside["top_p"]}
            values = {name: best[name] for name in names}
            tried.append((choices.short(values), values))
    return min(tried, key=lambda candidate: candidate[0])


def _descend(choices: Choices, short: float, values: Values) -> tuple[float, Values]:
    """Go downhill from these values along each parameter, in steps that halve."""
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
        return int(max(axis.least, value + way * max(1, round(step)))) if value > 0 else value  # off stays
    return min(axis.most, max(axis.least, value + way * step))


def _settled(choices: Choices, values: Values) -> tuple[int, Fitted]:
    """Return how many choices stay wrong, and nearby values that explain the most choices, rounded as people write
    them.

    From here on no more than these wrong choices are excused: rounding turns over few choices at the true values, and
    more at others.
    """
    # Without excused choices the search goes to where fewest are wrong, not to where the excuses just suffice.
    strict_choices = replace(choices, far_count=0)
    _, values = _descend(strict_choices, strict_choices.short(values), values)
    misses = len(strict_choices.gaps(values))
    spared = replace(choices, far_count=misses)
    return misses, _bounded(spared, _rounded(spared, values))


def _rounded(choices: Choices, values: Values) -> Values:
    """Return the values switched off, or with as few decimals as explain the choices equally well.

    People write such values. The loop runs twice over the names: a value that was rounded may leave room for another.
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
    """Find by halving how far each value can be moved without a shortfall. A value that is switched off gets no
    bounds.
    """
    bounds = {}
    for name, value in values.items():
        if value == OFF.get(name):
            continue
        axis = AXES[name]
        ends = []
        for end in sorted((value / 4, value * 4 if name != "top_p" else 1.0)):  # a penalty may be negative
            # Invariant: `good` explains the choices, `bad` does not, or is the end of the range.
            good, bad = value, min(axis.most, max(axis.least, end))
            for _ in range(HALVINGS):
                middle = (good + bad) / 2
                trial = {**values, name: round(middle) if name == "top_k" else middle}
                good, bad = (good, middle) if choices.short(trial) else (middle, bad)
            ends.append(round(good) if name == "top_k" else good)
        bounds[name] = (ends[0], ends[1])
    return Fitted(values, bounds, complete=True)
