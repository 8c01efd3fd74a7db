"""One side of a comparison: a backend, its environment, what it runs, and where that is recorded."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from harness import dates
from harness.envs.environment import Environment
from probes.lines import without_none
from scenarios.engines import registry
from scenarios.engines.spec import EngineSpec
from scenarios.lifted import FOLDER, lifted, steps
from scenarios.plants import NOTHING, Plants
from scenarios.records import promised
from scenarios.settings import Scenario


@dataclass(frozen=True)
class Side:
    """One side of a comparison.

    `plants`: faults planted in this side; none in a real run. `mapping`: the user's own, in the form of
    `scenarios.engines.mapping.ParameterMap`; empty: ours.
    """

    name: str  # baseline, candidate, or run
    backend: str
    environment: Environment
    scenario: Scenario
    run_dir: Path
    plants: Plants = NOTHING
    mapping: dict[str, Any] = field(default_factory=dict)
    replay: dict[str, Any] | None = None  # in run.json: which recorded run drives this one, and from which step on
    lifted: dict[str, Any] | None = None  # in run.json: that this is the lifted stage of a run, or why there is none

    command: str = ""  # the command line that makes the same runs again

    @property
    def spec(self) -> EngineSpec:
        """The spec of the engine. `backend` is its name with an environment or a version appended."""
        return registry.get(self.environment.engine)

    @property
    def parameter_map(self) -> dict[str, Any]:
        """The user's mapping, with planted edits on top if there are any."""
        return {**self.mapping, **self.plants.mapping}

    def lift(self, skipped: str = "") -> Side:
        """The same side in its lifted stage, recorded in a folder of the run's recording. `skipped`: why it has no
        such stage."""
        window = steps(self.scenario)
        facts = {"skipped": skipped} if skipped else {"first_step": window.start, "stop": window.stop}
        lifted_facts = {"held": self.scenario.model.dtype, **facts}
        folder = self.run_dir / FOLDER
        return replace(self, scenario=lifted(self.scenario), run_dir=folder, lifted=lifted_facts)

    def manifest(
        self,
        *,
        gpus: float,
        warm: dict[str, Any] | None = None,
        placement: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """The fields of run.json (docs/reference/format.md).

        `warm`: facts about an engine that was already up. `placement`: the hosts that were asked for.
        """
        scenario = self.scenario
        return {
            "scenario": scenario.to_json(),
            "side": self.name,
            "backend": self.backend,
            "environment": self.environment.to_json(),
            "sampling_mode": "replay" if self.replay is not None else scenario.rollout.mode,
            "guided": scenario.guided and self.name == "candidate",
            "seeds": {"scenario": scenario.seed, "engine": scenario.engine.seed},
            "command": self.command,
            "packages": {name: importlib.metadata.version(name) for name in ("ray", "torch", "transformers", "numpy")},
            "hardware": {
                "machine": platform.machine(),
                "cpus": os.cpu_count(),
                "gpus": gpus,
                "system": platform.system(),
            },
            **without_none(replay=self.replay, lifted=self.lifted, warm=warm, placement=placement or None),
            "mapping": self.parameter_map,
            "index": True,
            "records": promised(scenario, part=self.replay is not None or self.lifted is not None),
            "planted": {"name": self.plants.name, "summary": self.plants.summary} if self.plants.name else {},
            "started": dates.now(),
        }
