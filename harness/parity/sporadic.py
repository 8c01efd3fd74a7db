"""A sampler that now and then takes another token than it drew, told from what would look the same.

Another parameter moves near ties: its wrong choices lie where the best token is little ahead. Other random numbers take
any token, a filter bars the least likely. A sampler that passes its choice over does so at wide margins as at narrow
ones, whatever the token, for the second best.
"""

from __future__ import annotations

import math

from scipy import stats

from harness.parity.causes.family import Seen
from harness.parity.causes.sampler import SAMPLER

KEY = SAMPLER.key("another token now and then")
ALPHA = 0.01  # the error rate of each test
NEAR = 0.25  # of all positions: those at which the best two tokens are nearest, or the best one is least likely
MOST = NEAR  # of the tokens: a filter that bars so many passes over none but the least likely
ALLOWED = 1 / 3  # of the wrong choices of a parameter, at other positions (measured at temperature 0.9: 3 of 18)


def excluded(passed: int, others: int, compared: int, wide: int, likely: int, chance: float) -> tuple[Seen, ...]:
    """What the wrong choices of a sampler exclude; () where they are not those of one that passes its choice over.

    passed: choices of the second best token, `others`: of any other one, out of `compared`. wide: of `passed`, at
    margins wider than at a quarter of all positions; likely: where the best token is likelier than at a quarter.
    chance: the probability, as a logarithm, that other random numbers took the second best token each time.
    """
    if others or not 0 < passed <= MOST * compared:
        return ()
    tests = ((wide, Seen.ANY_MARGIN), (likely, Seen.LIKELY_TOKENS))
    seen = tuple(what for count, what in tests if float(stats.binom.sf(count - 1, passed, ALLOWED)) < ALPHA)
    return (*seen, Seen.SECOND_BEST) if len(seen) == len(tests) and chance < math.log(ALPHA) else ()
