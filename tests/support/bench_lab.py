"""One engine on a bench, in this process: as it was asked to be, and as it is."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import numpy as np
from recorded_words import recording_of

from harness.parity.interventions.situation import Situation
from harness.parity.subjects.precision import observed_floor
from harness.parity.subjects.weights.observed_sync_record import SyncRecord
from scenarios.bench.bench import Bench
from scenarios.bench.case import CaseSample, Tolerance
from scenarios.bench.undo import Stand
from scenarios.engines.make import EngineOptions
from scenarios.planted.differences.fault import Fault
from scenarios.remote import Actor, Local
from scenarios.session import EngineSession
from scenarios.settings import Sampling, Scenario

TOLERANCE = Tolerance(1e-4, 2e-4)


class Lab:
    """One engine on a bench, as it was asked to be and as it is."""

    def __init__(self, paths: dict[str, str], actor: Actor, sessions: list[Actor]) -> None:
        self._paths, self._actor, self._sessions = paths, actor, sessions

    def situation(
        self,
        asked: Sampling,
        *,
        given: Sampling | None = None,
        engine: dict[str, Any] | None = None,
        policy: str | None = None,
        mapping: dict[str, Any] | None = None,
        longer: int = 0,
        engines: int = 1,
    ) -> Situation:
        """`longer`: tokens by which the prompts of each group are longer than those of the one before it. `engines`:
        that the recording is of."""
        scenario = Scenario(sampling=asked)
        session = Local(
            EngineSession, "hf", policy or self._paths["policy"],
            dataclasses.replace(scenario, sampling=given or asked).to_json(),
            EngineOptions("cpu", mapping), wrap=Fault(engine=engine or {}).plants().engine,
        )  # fmt: skip
        self._sessions.append(session)
        bench = Bench(scenario.to_json(), {"candidate": Stand(session, self._actor, self._paths["policy"], 0)})
        samples = [
            CaseSample(
                number,
                (1, 40 + number // 2 * 3, 77, 120, 9, 33, *[60] * (longer * (number // 2))),
                number < 6,
                leader=number // 2 * 2,
            )
            for number in range(8)
        ]
        bench.open(samples, TOLERANCE)
        said = {
            "mode": "coupled",
            "file": "rollout",
            "canonical": dataclasses.asdict(given or asked),
            "given": dataclasses.asdict(given or asked),
        }
        recording = recording_of(scenario.to_json(), {"sampling": [said]}, ranks=lambda kind: set(range(engines)))
        side = SimpleNamespace(name="candidate", recording=recording, sync=SyncRecord())
        evidence: Any = SimpleNamespace(
            baseline=side,
            sides=[side],
            mode="coupled",
            steps=(),
            found=lambda kind: np.zeros((0, 2), np.int64),
            side=lambda name: side,
            tolerance=observed_floor.Tolerance("float32", 1e-4, 1e-4, 1e-6, 1.0),
        )
        clock = iter(range(10**9))
        return Situation(
            bench, evidence, "candidate", bench.read("candidate", again=True), lambda: next(clock) * 1e-3, 1e9, samples
        )
