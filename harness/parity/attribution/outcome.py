"""The result of attribution for one comparison."""

from __future__ import annotations

from dataclasses import dataclass, field

from harness.parity.causes.family import Seen
from harness.parity.facts.evidence import Learned
from harness.parity.interventions.situation import Named, Tried
from reports.model import RESIDUE
from scenarios.bench.case import Symptoms


@dataclass
class Attribution:
    """What the bench showed.

    - `first`: symptoms of each side before any intervention; `remaining`: after every intervention.
    - `named_after`: seconds from the start until the first side with a named cause was done.
    - `layers`: side -> in words, the first layer that differs and where attention reads other keys, for what stays
      unexplained; `computes`: that place, where the side holds what the learner does, and `excluded`: what was seen of
      that.
    - `broken`: why the engines cannot be used any more; "" while they can.
    - `learned`: what the recordings are then read again with.
    - `reproduced`: what no recorded cause explains was also in the last step, and its samples are in the case.
    - `drawn`: differing samples of the case.
    """

    first: dict[str, Symptoms] = field(default_factory=dict)
    remaining: dict[str, Symptoms] = field(default_factory=dict)
    named: list[Named] = field(default_factory=list)
    tried: list[Tried] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    layers: dict[str, str] = field(default_factory=dict)
    computes: dict[str, str] = field(default_factory=dict)
    excluded: dict[str, tuple[Seen, ...]] = field(default_factory=dict)
    seconds: float = 0.0
    named_after: float | None = None
    broken: str = ""
    learned: Learned = field(default_factory=Learned)
    reproduced: bool = False
    drawn: int = 0

    @property
    def differing(self) -> list[str]:
        """Return the sides that differed before any intervention."""
        return [side for side, first in self.first.items() if first.total]

    @property
    def explained(self) -> bool:
        """Whether interventions removed the difference of every side that differed."""
        return bool(self.differing) and all(map(self.removed, self.differing))

    def removed(self, side: str) -> bool:
        """Whether the side differed, and no longer does."""
        first, remaining = self.first.get(side), self.remaining.get(side)
        if first is None or remaining is None or not first.total:
            return False
        return remaining.total <= RESIDUE * first.total

    def settled(self, side: str) -> bool:
        """Whether the side was on the bench and does not differ there, or no longer differs."""
        return side in self.first and (not self.first[side].total or self.removed(side))
