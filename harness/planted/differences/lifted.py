"""Faults of the lifted stage: a sound baseline with its stage, then each fault's run and stage on the other engine."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path

from harness import config, verdict_file
from harness.cluster.experiment import Experiment
from harness.cluster.side import Side
from harness.errors import HarnessError
from harness.parity.runs.lifting import attributed
from harness.parity.verdict import judged
from harness.planted.differences.files import reproduced_by
from harness.planted.differences.outcome import Outcome, started_since
from scenarios.planted.differences.fault import READY, Fault
from scenarios.settings import Scenario


def lifting(
    experiment: Experiment,
    left: Side,
    right: Side,
    pair: tuple[str, str],
    scenario: Scenario,
    faults: list[Fault],
    out: Path,
    shared: Path,
    live: bool,
) -> Iterator[Outcome]:
    """Record the sound baseline and its lifted stage under `shared`, then both of the candidate, once a fault.

    A fault is planted in the run and in the stage; one that the run shows by itself belongs to another stage. The
    baseline is sound: a fault's side is the candidate.
    """
    one = dataclasses.replace(left, scenario=scenario, run_dir=shared / "baseline", plants=READY)
    try:
        experiment.vary(one)
        policy = experiment.record(one)
        experiment.begin_lifted(one)
        guide = experiment.lift(one, policy)
    except HarnessError as error:
        for fault in faults:
            yield Outcome(fault, None, pair=pair, error=error.message)
        experiment.revive()
        return
    for fault in faults:
        started, before = time.monotonic(), experiment.engine_starts()
        settings = config.changed(scenario, fault.settings)
        two = dataclasses.replace(
            right, scenario=settings, run_dir=out / fault.name / "candidate", plants=fault.plants()
        )
        try:
            experiment.vary(two)
            experiment.record(two, guide=one.run_dir)
            experiment.begin_lifted(two)
            experiment.lift(two, policy, guide=guide)
        except HarnessError as error:
            yield Outcome(fault, None, round(time.monotonic() - started, 1), pair=pair, error=error.message)
            experiment.revive()
            return
        ran = time.monotonic()
        found = attributed(experiment, one, two)[0] if live else None
        shown = time.monotonic()
        verdict = judged(
            one.run_dir, two.run_dir, native=False, cap=fault.cap, lifted_verdict=found,
            reproduce=reproduced_by(fault, pair, scenario.model.dtype),
        ).verdict  # fmt: skip
        seconds = round(time.monotonic() - shown, 2), round(shown - ran, 2)
        (two.run_dir.parent / verdict_file.NAME).write_text(verdict.to_json(), encoding="utf-8")
        starts = started_since(before, experiment.engine_starts())
        yield Outcome(fault, verdict, round(ran - started, 1), *seconds, starts, pair=pair)
