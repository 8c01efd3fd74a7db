"""A sampler that draws in another way than its parameters say: it applies top-k and top-p jointly, or now and then
takes another token than it drew.

Told from what would look the same as the latter: another parameter moves near ties, and its wrong choices lie where the
best token is little ahead. Other random numbers take any token, a filter bars the least likely. A sampler that passes
its choice over does so at wide margins as at narrow ones, whatever the token, for the second best.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from scipy import stats

from harness.parity.causes.family import CauseFamily, Seen
from harness.parity.interventions.situation import Situation
from harness.parity.interventions.trial import Trial

ALPHA = 0.01  # the error rate of each test
NEAR = 0.25  # of all positions: those at which the best two tokens are nearest, or the best one is least likely
MOST = NEAR  # of the tokens: a filter that bars so many passes over none but the least likely
ALLOWED = 1 / 3  # of the wrong choices of a parameter, at other positions (measured at temperature 0.9: 3 of 18)


def filters(s: Situation) -> Iterator[Trial]:
    """Top-k and top-p jointly, where both are asked."""
    sampling = {**s.run_sampling, **s.given_sampling}
    if s.rest.of("tokens") and int(sampling.get("top_k") or -1) > 0 and float(sampling.get("top_p") or 1.0) < 1.0:
        yield Trial(
            JOINT,
            "top-p over the unfiltered mass in the reference",
            "the engine applies top-p to the unfiltered mass, not to the renormalised top-k",
            {"joint": True},
        )


def excluded(passed: int, other_choices: int, compared: int, wide: int, likely: int, chance: float) -> tuple[Seen, ...]:
    """What the wrong choices of a sampler exclude; () where they are not those of one that passes its choice over.

    passed: choices of the second best token, `other_choices`: of any other one, out of `compared`. wide: of `passed`,
    at margins wider than at a quarter of all positions; likely: where the best token is likelier than at a quarter.
    chance: the probability, as a logarithm, that other random numbers took the second best token each time.
    """
    if other_choices or not 0 < passed <= MOST * compared:
        return ()
    tests = ((wide, Seen.ANY_MARGIN), (likely, Seen.LIKELY_TOKENS))
    exclusions = tuple(what for count, what in tests if float(stats.binom.sf(count - 1, passed, ALLOWED)) < ALPHA)
    return (*exclusions, Seen.SECOND_BEST) if len(exclusions) == len(tests) and chance < math.log(ALPHA) else ()


SAMPLER = CauseFamily(
    "SAMPLER",
    meaning="the engine's own sampler draws otherwise than its parameters say",
    fix="turn off what replaces the engine's own sampler, or use another version of the engine",
    alone="its rule names it only once a parameter, a filter and other random numbers are excluded",
    suspicion=7,
    drawn=True,
)
JOINT = SAMPLER.key("joint top-k/top-p")
SPORADIC = SAMPLER.key("another token now and then")

FAMILIES = (SAMPLER,)
