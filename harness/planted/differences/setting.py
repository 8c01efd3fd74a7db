"""What the faults of one scenario are run on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from harness.cluster.experiment import Experiment
from harness.cluster.side import Side
from scenarios.settings import Scenario


@dataclass(frozen=True)
class Setting:
    """Engines that are up, and a scenario to plant faults in. `pair`: the engines as a user types them. `out`: under
    it each fault has a folder of recordings."""

    experiment: Experiment
    baseline: Side
    candidate: Side
    pair: tuple[str, str]
    scenario: Scenario
    out: Path
