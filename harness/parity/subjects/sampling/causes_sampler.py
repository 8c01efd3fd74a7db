"""The cause SAMPLER: an engine does not draw as its parameters say.

It applies top-k and top-p jointly, or sometimes takes another token than the one it drew. Three other faults look like
the second one. Another parameter changes choices near ties, where the best token is little ahead. Other random numbers
take any token. A filter excludes the least likely tokens. A sampler that skips its choice does so at wide margins as
often as at narrow ones, whatever the token, and takes the second best.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from harness.parity.causes.family import CauseFamily, Seen
from harness.parity.causes.proof import live
from harness.parity.facts.probabilities import binomial_from
from harness.parity.interventions.situation import Situation
from harness.parity.interventions.trial import Trial

ALPHA = 0.01  # the error rate of each test
NEAR = 0.25  # share of all positions: where the best two tokens are nearest, or the best one is least likely
MOST = NEAR  # share of the tokens: a filter that excludes no more choices than this excludes the least likely
ALLOWED = 1 / 3  # share of a parameter's wrong choices at other positions (measured at temperature 0.9: 3 of 18)


def filters(s: Situation) -> Iterator[Trial]:
    """Try top-k and top-p jointly, where both were asked for."""
    sampling = {**s.run_sampling, **s.given_sampling}
    cuts_both = int(sampling.get("top_k") or -1) > 0 and float(sampling.get("top_p") or 1.0) < 1.0
    if cuts_both and s.remaining.of("tokens"):
        yield Trial(
            JOINT,
            "top-p over the unfiltered mass in the reference",
            "the engine applies top-p to the unfiltered mass, not to the renormalised top-k",
            {"joint": True},
        )


def excluded(passed: int, other_choices: int, compared: int, wide: int, likely: int, chance: float) -> tuple[Seen, ...]:
    """Return what the wrong choices exclude; () where they are not those of a sampler that skips its choice.

    `passed`: choices of the second best token. `other_choices`: choices of any other token. `compared`: all choices.
    `wide`: how many of `passed` have a margin above the lowest quarter of all positions. `likely`: how many have a best
    token whose probability is above the lowest quarter. `chance`: log probability that other random numbers took the
    second best token each time.
    """
    if other_choices or not 0 < passed <= MOST * compared:
        return ()
    tests = ((wide, Seen.ANY_MARGIN), (likely, Seen.LIKELY_TOKENS))
    exclusions = tuple(what for count, what in tests if binomial_from(count, passed, ALLOWED) < ALPHA)
    return (*exclusions, Seen.SECOND_BEST) if len(exclusions) == len(tests) and chance < math.log(ALPHA) else ()


SAMPLER = CauseFamily(
    "SAMPLER",
    meaning="the engine's own sampler does not draw as its parameters say",
    fix="turn off what replaces the engine's own sampler, or use another version of the engine",
    details={
        "joint top-k/top-p": "top-p is taken of all tokens, and not of those that top-k leaves",
        "another token now and then": "some tokens are the second best where another was drawn",
    },
    alone="its rule names it only once a parameter, a filter and other random numbers are excluded",
    suspicion=7,
    drawn=True,
    proof=live("with the sampler's other order, or the second best token, each choice comes out as the engine's"),
)
JOINT = SAMPLER.key("joint top-k/top-p")
SPORADIC = SAMPLER.key("another token now and then")

FAMILIES = (SAMPLER,)
