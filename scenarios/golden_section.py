"""Finds the maximum of a function of one positive number."""

from __future__ import annotations

import math
from collections.abc import Callable


def peak(of: Callable[..., float], low: float, high: float, within: float = 0.004, enough: float = math.inf) -> float:
    """Return where a function with one peak is largest: golden section over the logarithm, to the relative precision
    `within`.

    `enough`: a value that need not be exceeded; the first place that reaches it is returned.
    """
    golden = (math.sqrt(5) - 1) / 2
    a, b = math.log(low), math.log(high)
    c, d = b - golden * (b - a), a + golden * (b - a)
    at_c, at_d = of(math.exp(c)), of(math.exp(d))
    while b - a > within and max(at_c, at_d) < enough:
        if at_c > at_d:
            b, d, at_d = d, c, at_c
            c = b - golden * (b - a)
            at_c = of(math.exp(c))
        else:
            a, c, at_c = c, d, at_d
            d = a + golden * (b - a)
            at_d = of(math.exp(d))
    if max(at_c, at_d) >= enough:
        return math.exp(c if at_c >= at_d else d)
    return math.exp((a + b) / 2)
