"""Run the faults of the lifted stage: one sound baseline with its lifted stage, then each fault on the other engine."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path

from harness import config, verdict_file
from harness.errors import HarnessError
from harness.parity.runs.lifting import attributed
from harness.parity.verdict import FurtherEvidence, judged_pair
from harness.planted.differences.files import reproduced_by
from harness.planted.differences.outcome import Outcome, started_since
from harness.planted.differences.setting import Setting
from probes.files import write_whole
from scenarios.planted.differences.fault import READY, Fault


def lifting(setting: Setting, faults: list[Fault], shared: Path) -> Iterator[Outcome]:
    """Record the sound baseline and its lifted stage under `shared`, then both of the candidate for each fault.

    Each fault is planted in the candidate's coupled run and in its lifted stage. The baseline is always sound. A
    fault that the coupled run alone would show belongs to another stage.
    """
    experiment, pair, scenario, out = setting.experiment, setting.pair, setting.scenario, setting.out
    baseline = dataclasses.replace(setting.baseline, scenario=scenario, run_dir=shared / "baseline", plants=READY)
    try:
        experiment.vary(baseline)
        policy = experiment.record(baseline)
        experiment.begin_lifted(baseline)
        guide = experiment.lift(baseline, policy)
    except HarnessError as error:
        for fault in faults:
            yield Outcome(fault, None, pair=pair, error=error.message)
        experiment.revive()
        return
    for fault in faults:
        started, before = time.monotonic(), experiment.engine_starts()
        settings = config.changed(scenario, fault.settings)
        candidate = dataclasses.replace(
            setting.candidate, scenario=settings, run_dir=out / fault.folder / "candidate", plants=fault.plants()
        )
        try:
            experiment.vary(candidate)
            experiment.record(candidate, guide=baseline.run_dir)
            experiment.begin_lifted(candidate)
            experiment.lift(candidate, policy, guide=guide)
        except HarnessError as error:
            yield Outcome(fault, None, round(time.monotonic() - started, 1), pair=pair, error=error.message)
            experiment.revive()
            return
        ran = time.monotonic()
        lifted_verdict = attributed(experiment, baseline, candidate)[0]
        attributed_at = time.monotonic()
        further = FurtherEvidence(lifted=lifted_verdict)
        verdict = judged_pair(baseline.run_dir, candidate.run_dir, native=False, cap=fault.cap, further=further).verdict
        verdict = dataclasses.replace(verdict, reproduce=reproduced_by(fault, pair, scenario.model))
        seconds = round(time.monotonic() - attributed_at, 2), round(attributed_at - ran, 2)
        write_whole(candidate.run_dir.parent / verdict_file.NAME, verdict.to_json().encode())
        starts = started_since(before, experiment.engine_starts())
        yield Outcome(fault, verdict, round(ran - started, 1), *seconds, starts, pair=pair)
