"""The plan of looks at a native stage: how much error each look may spend, so that all looks together keep one rate.

The engines draw in parts. After each part all samples so far are tested, until every quantity is decided. A test
that is repeated at an unchanged level errs more often than that level says (Armitage, McPherson and Rowe 1969). So the
error is spent over the looks: of alpha, alpha * ln(1 + (e - 1) t) is spent once the share t of the most samples is
drawn. This is the spending function of Lan and DeMets (1983, Biometrika 70, 659) that approximates the bounds of Pocock
(1977). It suits a stage that nearly always ends at the first look, for which O'Brien and Fleming's function leaves
nothing.

A look may reject at what the function gains since the look before, and corrects its own tests by Holm (1979). By
Bonferroni's inequality all looks together err at most as often as alpha, whatever samples they share and whatever ends
the drawing. The exact bounds, from the joint distribution of the looks, would be a little less strict.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from harness.parity.subjects.native_sampler.observed import (
    ALPHA,
    DRAWS,
    EQUIVALENCE_ALPHA,
    MARGIN,
    MOST_DRAWS,
    most_looks,
)
from harness.recordings.store import Recording
from scenarios.settings import later_draw

DOUBT = 0.01  # a corrected p up to this may be chance, as in one sound stage of a hundred, or a small difference


@dataclass(frozen=True)
class Plan:
    """At most `draws` times the samples of the first draw, with error rates over all looks.

    `part`: samples of each later draw, as a share of the first. `margin`: in standard deviations within prompts.
    """

    draws: int = DRAWS
    part: float = 1.0
    alpha: float = ALPHA
    equivalence_alpha: float = EQUIVALENCE_ALPHA
    margin: float = MARGIN

    @classmethod
    def of(cls, recording: Recording) -> Plan:
        """Read the plan from the scenario's `native` table."""
        native = recording.records.settings.native
        return cls(
            draws=int(native.draws) if 1 <= native.draws <= MOST_DRAWS else DRAWS,
            part=_later_part(native.samples, native.further),
            alpha=ALPHA if math.isnan(native.alpha) else native.alpha,
            margin=MARGIN if math.isnan(native.margin) else native.margin,
        )

    def level(self, alpha: float, draw: int) -> float:
        """Return what the look after this draw may spend of `alpha`. Draws count from 1."""
        return alpha * (self._spent_after(draw) - self._spent_after(draw - 1))

    @property
    def strictest(self) -> tuple[float, float]:
        """Return the smallest shares of `alpha` and `equivalence_alpha` that a look may spend: those of the last
        look.
        """
        last = most_looks(self.draws, self.part)
        return self.level(self.alpha, last), self.level(self.equivalence_alpha, last)

    def _spent_after(self, draw: int) -> float:
        """Return the share of the error that is spent after this draw, of Lan and DeMets' function."""
        drawn = min(1.0, (1 + (draw - 1) * self.part) / self.draws) if draw else 0.0
        return math.log(1 + (math.e - 1) * drawn)


def _later_part(samples: float, further: float) -> float:
    """Return the samples of a later draw as a share of the first. A recording without `further` has equal draws."""
    if not (math.isfinite(samples) and math.isfinite(further)) or samples < 1:
        return 1.0
    return later_draw(int(samples), int(further)) / int(samples)
