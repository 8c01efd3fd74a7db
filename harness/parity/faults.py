"""The planted faults of parity on warm engines: one baseline, then one candidate run for each fault, each judged."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from harness import config, envs
from harness.experiment import Experiment, Side
from harness.launch import Cluster
from harness.parity import judge
from reports.model import Verdict
from reports.progress import ProgressEvent
from scenarios.faults.catalog import Fault
from scenarios.settings import Scenario


@dataclass(frozen=True)
class Outcome:
    """What the judge made of one planted fault. `found`: the expected verdict. `named`: the expected cause stands among
    the causes."""

    fault: Fault
    verdict: Verdict
    seconds: float

    @property
    def found(self) -> bool:
        return self.verdict.verdict == self.fault.expected

    @property
    def named(self) -> bool:
        return not self.fault.cause or any(self.fault.cause in cause.name for cause in self.verdict.causes)


def outcomes(
    baseline: str,
    candidate: str,
    faults: list[Fault],
    *,
    scenario: Scenario,
    out: Path,
    device: str = "auto",
    progress: Callable[[ProgressEvent], None] = lambda event: None,
) -> Iterator[Outcome]:
    """Record the baseline once, then one candidate a fault on the same engines, and judge each pair. Recordings stay
    under `out`.

    The native stage, for faults that need it, is part of `run_parity`, not of this suite.
    """
    left = Side("baseline", baseline, envs.resolve(baseline), scenario, out / "baseline")
    right = Side("candidate", candidate, envs.resolve(candidate), scenario, out / "control")
    with Cluster() as cluster:
        experiment = Experiment(cluster, [left, right], progress=progress, device=device)
        experiment.begin(spare=4 * len(faults))
        experiment.record(left)
        for fault in faults:
            started = time.monotonic()
            side = dataclasses.replace(
                right,
                scenario=config.changed(scenario, fault.settings),
                run_dir=out / (fault.name or "control"),
                wrap=dict(fault.wrap),
                omit_tensors=dict(fault.omit_tensors),
            )
            experiment.vary(side)
            experiment.record(side, guide=left.run_dir)
            verdict = judge(left.run_dir, side.run_dir, native=False)
            yield Outcome(fault, verdict, round(time.monotonic() - started, 1))
