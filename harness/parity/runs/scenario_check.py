"""Whether the scenario could have shown each kind of fault. Equal lengths without any spread, say, prove little."""

from __future__ import annotations

import dataclasses

from probes.format import Run
from reports.model import Finding, Verdict
from scenarios.ppo import selfcheck


def with_scenario(verdict: Verdict, run: Run) -> Verdict:
    """Return the verdict with a finding for each kind of fault that the baseline's scenario could not have shown.

    Its coverage gets the measurements of the scenario. The verdict of a framework's job, which has no scenario, is
    unchanged.
    """
    if not run.manifest.get("scenario") or run.manifest.get("framework"):
        return verdict
    figures = verdict.parity.floor if verdict.parity else {}
    floor, tolerance = figures.get("combined"), figures.get("tolerance", selfcheck.TOLERANCE)
    believed_floor = floor if isinstance(floor, float) and floor > 0 else selfcheck.FLOOR
    checks = [check for check in selfcheck.report(run, floor=believed_floor, tolerance=tolerance) if check.applies]
    weak = [
        Finding(
            check.hides,
            check.summary,
            effect="equality says less than it seems to",
            severity="warning",
            where="baseline",
            about="scenario",
        )
        for check in checks
        if not check.ok
    ]
    measured = {check.name: round(check.value, 6) for check in checks}
    return dataclasses.replace(
        verdict, findings=[*verdict.findings, *weak], coverage=verdict.coverage | {"scenario": measured}
    )
