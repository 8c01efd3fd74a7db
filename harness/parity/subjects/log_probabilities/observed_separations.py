"""Where differences stand: which property of a token or of its sample separates what differs from what does not.

Each property of `PROPERTIES` is a mask over the tokens or the samples of a step. All of the steps in which an engine
differs from its learner are counted by it. An exact separation leads: everything with the property differs and nothing
else does, only what has it differs, or nothing that has it does. The tokens of a sample are not independent, so
properties of a sample are counted by samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from scipy import stats

from harness.parity.facts.align import AlignedTokens

FEWEST = 5  # tokens, or samples, on either side of an exact separation; fewer may stand there by chance
CHANCE = 1e-3  # greatest probability of a separation by chance, over all properties
UNLIKELY = float(np.log(0.01))  # nats


@dataclass(frozen=True)
class StepTokens:
    """One step's tokens of an engine, with the learner's numbers, flat on the grid of `tokens`.

    `prompt`, `cached`: tokens of the prompt of each row, and those from a cache; None where not recorded. `specials`:
    ids.
    """

    tokens: AlignedTokens
    engine: np.ndarray
    learner: np.ndarray
    prompt: np.ndarray | None
    cached: np.ndarray | None
    specials: tuple[int, ...]

    @property
    def position(self) -> np.ndarray:
        return self.tokens.grid.position

    def finished(self, reason: str) -> np.ndarray | None:
        """Return the rows that ended for this reason."""
        finish = self.tokens.a.finish
        return None if finish is None else np.asarray(finish)[self.tokens.match.a] == reason


@dataclass(frozen=True)
class Property:
    """`name`: what tokens with it are called, or samples where it is `of_samples`. `has`: their mask; None where the
    recording does not say.
    """

    name: str
    has: Callable[[StepTokens], np.ndarray | None]
    of_samples: bool = False


def _ends(step: StepTokens) -> np.ndarray | None:
    stopped, grid = step.finished("stop"), step.tokens.grid
    is_last = grid.position == (grid.length - 1)[grid.row]
    return None if stopped is None else is_last & stopped[grid.row]


def _cut(step: StepTokens) -> np.ndarray | None:
    return step.finished("length")


def _shorter(step: StepTokens) -> np.ndarray | None:
    return None if step.prompt is None else step.prompt < step.prompt.max(initial=0)


def _cached(step: StepTokens) -> np.ndarray | None:
    return None if step.cached is None else step.cached > 0


PROPERTIES = (
    Property("end tokens of samples that stopped", _ends),
    Property("first tokens of responses", lambda step: step.position == 0),
    Property("tokens with a log-probability of exactly 0", lambda step: step.engine == 0.0),
    Property("samples with a prompt shorter than the longest of the step, which a batch pads", _shorter, True),
    Property("samples with cached tokens", _cached, True),
    Property("samples that a limit cut", _cut, True),
    Property("special tokens", lambda step: np.isin(step.tokens.tokens_a, step.specials) if step.specials else None),
    Property("tokens that the learner gives less than 1 in 100", lambda step: step.learner < UNLIKELY),
)
ZERO = PROPERTIES[2].name


@dataclass(frozen=True)
class Separation:
    """How many tokens, or samples, have a property, and how many of them differ; `count` and `differing` are of all."""

    name: str
    having: int
    having_differing: int
    count: int
    differing: int

    @property
    def lacking(self) -> int:
        return self.count - self.having

    @property
    def lacking_differing(self) -> int:
        return self.differing - self.having_differing

    @property
    def exact(self) -> bool:
        """Whether all that differs has the property, or nothing that has it differs."""
        enough = min(self.having, self.lacking) >= FEWEST and self.differing >= FEWEST
        return enough and 0 in (self.lacking_differing, self.having_differing) and self.p < CHANCE / len(PROPERTIES)

    @property
    def complete(self) -> bool:
        """Whether the property says of each token whether it differs."""
        return self.exact and (
            self.having == self.having_differing or (not self.having_differing and self.lacking == self.differing)
        )

    @property
    def p(self) -> float:
        """Return the probability that so many, or so few, of what differs have the property by chance."""
        law = stats.hypergeom(self.count, self.having, self.differing)
        at = self.having_differing
        return float(min(law.cdf(at), law.sf(at - 1)))

    def in_words(self) -> str:
        """Return the separation as a clause."""
        if self.complete and self.having_differing:
            return f"all that differs are {self.differing:,} {self.name}, and they are all that there are"
        if self.exact and self.having_differing:
            return (
                f"only {self.name} differ: {self.having_differing:,} of {self.having:,}, 0 of {self.lacking:,} others"
            )
        return f"none of {self.having:,} {self.name} differs, {self.lacking_differing:,} of {self.lacking:,} others do"


Sums = dict[str, np.ndarray]  # property -> how many have it, how many of them differ, all, all that differ


def count(sums: Sums, step: StepTokens, differs: np.ndarray, compared: np.ndarray) -> None:
    """Add the tokens of one step. `differs`, `compared`: masks over its tokens."""
    grid, differs = step.tokens.grid, differs & compared
    of_tokens, of_samples = (differs, compared), (grid.any(differs), grid.any(compared))
    for trait in PROPERTIES:
        mask = trait.has(step)
        if mask is None:
            sums[trait.name] = np.full(4, np.nan)  # of a step that does not say, nobody knows
            continue
        wrong, looked_at = of_samples if trait.of_samples else of_tokens
        parts = (mask & looked_at, mask & wrong, looked_at, wrong)
        counts = np.array([np.count_nonzero(part) for part in parts], float)
        sums[trait.name] = sums.get(trait.name, np.zeros(4)) + counts


def separations(sums: Sums) -> tuple[Separation, ...]:
    """Return the exact separations, those that decide on every token first, then the ones that leave fewest open."""
    made = [Separation(name, *map(int, counts)) for name, counts in sums.items() if not np.isnan(counts).any()]
    exact: Iterable[Separation] = (separation for separation in made if separation.exact)
    return tuple(sorted(exact, key=lambda separation: (not separation.complete, separation.p)))
