"""Run the faults of the native stage: one sound pair of coupled runs, then one native stage per fault on pure
engines.
"""

from __future__ import annotations

import dataclasses
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from harness import config, verdict_file
from harness.errors import HarnessError
from harness.parity.runs.more_draws import draw_on
from harness.parity.verdict import judged_pair
from harness.planted.differences.files import reproduced_by
from harness.planted.differences.outcome import Outcome, started_since
from harness.planted.differences.setting import Setting
from harness.recordings.library import Library
from probes.files import write_whole
from scenarios.planted.differences.fault import READY, Fault
from scenarios.settings import Scenario


def natively(setting: Setting, faults: list[Fault], shared: Path) -> Iterator[Outcome]:
    """Record the sound coupled runs and the baseline's native stage under `shared`, then the candidate's for each
    fault.

    A fault is planted in the native stage only, because other faults cover its effect on the coupled stage. A fault
    with settings of the native stage needs a native stage of the baseline with the same settings.
    """
    experiment, pair, scenario, out = setting.experiment, setting.pair, setting.scenario, setting.out
    baseline = dataclasses.replace(setting.baseline, scenario=scenario, run_dir=shared / "baseline", plants=READY)
    candidate = dataclasses.replace(setting.candidate, scenario=scenario, run_dir=shared / "candidate", plants=READY)
    try:
        experiment.vary(baseline)
        policy = experiment.record(baseline)
        experiment.vary(candidate)
        experiment.record(candidate, guide=baseline.run_dir if scenario.guided else None)
        if any(fault.native for fault in faults):
            shutil.copytree(baseline.run_dir, _coupled(shared))
        experiment.begin_native(baseline, policy)
        experiment.native(baseline, policy=policy)
    except HarnessError as error:
        for fault in faults:
            yield Outcome(fault, None, pair=pair, error=error.message)
        experiment.revive()
        return
    pure = False
    for fault in sorted(faults, key=lambda fault: bool(fault.native)):
        started, before = time.monotonic(), experiment.engine_starts()
        settings = _natural(scenario, (*fault.native, *fault.settings))
        side = dataclasses.replace(
            candidate, scenario=settings, run_dir=out / fault.folder / "candidate", plants=fault.plants()
        )
        try:
            shutil.copytree(candidate.run_dir, side.run_dir)
            if not pure:  # started with the fault's mapping, because ours may refuse what the fault passes on
                coupled = dataclasses.replace(side, scenario=config.changed(scenario, fault.settings))
                experiment.vary(coupled, manifest=False)
                experiment.begin_native(coupled, policy)
            fault_baseline = baseline
            if fault.native:
                fault_baseline = dataclasses.replace(
                    baseline, scenario=_natural(scenario, fault.native), run_dir=_baseline(out, fault)
                )
                shutil.copytree(_coupled(shared), fault_baseline.run_dir)
                experiment.vary(fault_baseline, manifest=False)
                experiment.native(fault_baseline, policy=policy)
            experiment.vary(side, manifest=False)
            experiment.native(side, policy=policy)
            pure = True
            draw_on(experiment, fault_baseline, side, policy, cap=fault.cap, library=Library())
        except HarnessError as error:
            yield Outcome(fault, None, round(time.monotonic() - started, 1), pair=pair, error=error.message)
            experiment.revive()
            pure = False
            continue
        ran = time.monotonic()
        verdict = judged_pair(fault_baseline.run_dir, side.run_dir, native=True, cap=fault.cap).verdict
        verdict = dataclasses.replace(verdict, reproduce=reproduced_by(fault, pair, scenario.model))
        judged_s = round(time.monotonic() - ran, 2)
        write_whole(side.run_dir.parent / verdict_file.NAME, verdict.to_json().encode())
        starts = started_since(before, experiment.engine_starts())
        yield Outcome(fault, verdict, round(ran - started, 1), judged_s, starts=starts, pair=pair)


def _natural(scenario: Scenario, settings: tuple[str, ...]) -> Scenario:
    """Return the scenario with these settings in the native stage."""
    return config.changed(scenario, [*settings, "rollout.mode=native"])


def _coupled(shared: Path) -> Path:
    """Return the folder of the baseline without a native stage, for faults that need a native stage of their own."""
    return shared / "baseline-coupled"


def _baseline(out: Path, fault: Fault) -> Path:
    return out / fault.folder / "baseline"
