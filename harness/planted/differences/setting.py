"""The engines and the scenario that the faults of one group run on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from harness.cluster.experiment import Experiment
from harness.cluster.side import Side
from scenarios.settings import Scenario


@dataclass(frozen=True)
class Setting:
    """Running engines, and a scenario to plant faults in.

    experiment: records runs on the engines.
    baseline, candidate: the sound sides.
    pair: the engines as a user types them.
    scenario: the scenario of the group.
    out: the folder under which each fault has its recordings.
    """

    experiment: Experiment
    baseline: Side
    candidate: Side
    pair: tuple[str, str]
    scenario: Scenario
    out: Path
