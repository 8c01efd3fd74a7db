"""What the bench showed of one comparison."""

from __future__ import annotations

from dataclasses import dataclass, field

from harness.parity.facts.evidence import Learned
from harness.parity.interventions.situation import Named, Tried
from scenarios.bench.case import Symptoms


@dataclass
class Attribution:
    """`first`: symptoms of each side as it stood; `left`: after every intervention. `named_after`: seconds from the
    start to the last cause that was named. `layers`: of what stays unexplained in a side, the first layer that
    differs, and where attention reads other keys, in words; `computes`: that place, where the side holds what the
    learner does. `broken`: why its engines are good for nothing more; empty while they are. `learned`: what the
    recordings are then read with once more. `reproduced`: what no cause of the recordings explains was there in the
    last step too, and its samples are in the case. `drawn`: offending samples of the case.
    """

    first: dict[str, Symptoms] = field(default_factory=dict)
    left: dict[str, Symptoms] = field(default_factory=dict)
    named: list[Named] = field(default_factory=list)
    tried: list[Tried] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    layers: dict[str, str] = field(default_factory=dict)
    computes: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    named_after: float | None = None
    broken: str = ""
    learned: Learned = field(default_factory=Learned)
    reproduced: bool = False
    drawn: int = 0
