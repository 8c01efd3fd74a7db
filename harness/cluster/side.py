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
from scenarios.engines import registry
from scenarios.engines.spec import EngineSpec
from scenarios.lifted import FOLDER, lifted, steps
from scenarios.plants import NOTHING, Plants
from scenarios.records import promised
from scenarios.settings import Scenario


@dataclass(frozen=True)
class Side:
    """One side of a comparison. `plants`: planted in this side; nothing in every real run. `mapping`: a user's own, as
    `scenarios.engines.mapping.ParameterMap` takes it; empty: ours."""

    name: str  # baseline, candidate, or run
    backend: str
    environment: Environment
    scenario: Scenario
    run_dir: Path
    plants: Plants = NOTHING
    mapping: dict[str, Any] = field(default_factory=dict)
    replay: dict[str, Any] | None = None  # of run.json: which recorded run drives this one, and from which step on
    lifted: dict[str, Any] | None = None  # of run.json: this is the lifted stage of a run, or why there is none

    command: str = ""  # that makes the same runs again

    @property
    def spec(self) -> EngineSpec:
        """Of the engine, which `backend` names with an environment or a version behind it."""
        return registry.get(self.environment.engine)

    @property
    def parameter_map(self) -> dict[str, Any]:
        """The user's mapping with the planted edits, if any, on top."""
        return {**self.mapping, **self.plants.mapping}

    def lift(self, skipped: str = "") -> Side:
        """The same side in its lifted stage, whose recording lies in the run's. `skipped`: why it has none."""
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
        """The fields of run.json (docs/reference/format.md). `warm`: of an engine
        that was up before. `placement`: which hosts were asked for."""
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
            **({"replay": self.replay} if self.replay is not None else {}),
            **({"lifted": self.lifted} if self.lifted is not None else {}),
            **({"warm": warm} if warm is not None else {}),
            **({"placement": placement} if placement else {}),
            "mapping": self.parameter_map,
            "index": True,
            "records": promised(scenario, part=self.replay is not None or self.lifted is not None),
            "planted": {"name": self.plants.name, "summary": self.plants.summary} if self.plants.name else {},
            "started": dates.now(),
        }
