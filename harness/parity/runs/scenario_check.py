"""Whether the scenario could have shown each kind of fault. Equal lengths without any spread, say, prove little."""

from __future__ import annotations

import dataclasses

from probes.format import SIDES, Run
from reports.model import PASSES, Finding, Verdict
from scenarios.ppo import selfcheck


def with_scenario(verdict: Verdict, baseline: Run, candidate: Run) -> Verdict:
    """Return the verdict with the measurements of the baseline's scenario in its coverage.

    A verdict that calls something equal also gets a finding for each kind of fault that the scenario could not have
    shown. The sides share prompts, tokens and lengths, so only the move of an update is checked on both: each against
    the floor of its own engine. The verdict of a framework's job, which has no scenario, is unchanged.
    """
    if not baseline.manifest.get("scenario") or baseline.manifest.get("framework"):
        return verdict
    figures = verdict.parity.floor if verdict.parity else {}
    tolerance = figures.get("tolerance", selfcheck.TOLERANCE)
    floors = {side: _believed(figures.get(side)) for side in SIDES}
    checks = selfcheck.report(baseline, floor=floors["baseline"], tolerance=tolerance)
    of_candidate = selfcheck.update_moves(candidate, floor=floors["candidate"])
    is_named = any(check.hides == of_candidate.hides and not check.ok for check in checks)  # one kind of fault, once
    sides = {"baseline": checks, "candidate": [] if is_named else [of_candidate]}
    weak: list[Finding] = []
    if verdict.verdict in PASSES:
        for side, checks_of_side in sides.items():
            weak += [_weak(check, side) for check in checks_of_side if check.applies and not check.ok]
    measured = {check.name: round(check.value, 6) for check in checks if check.applies}
    return dataclasses.replace(
        verdict, findings=[*verdict.findings, *weak], coverage=verdict.coverage | {"scenario": measured}
    )


def _weak(check: selfcheck.SelfCheck, side: str) -> Finding:
    """Return a finding on a kind of fault that the scenario could not have shown."""
    return Finding(
        check.hides,
        check.summary,
        effect="equality says less than it seems to",
        severity="warning",
        where=side,
        about="scenario",
    )


def _believed(floor: object) -> float:
    """Return the floor of an engine; where it was not measured or is 0, what tiny models showed."""
    return floor if isinstance(floor, float) and floor > 0 else selfcheck.FLOOR
