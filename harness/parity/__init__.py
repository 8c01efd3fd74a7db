"""Parity: do two recorded runs agree? `judge` reads two run directories and gives one verdict (see `verdict`).

From the bottom, each room using only those before it: `facts` (two recordings aligned, the floor), `native` (the
engines' own samplers), `gather` (both in one pass), `causes`, `rules` and `explain` (causes that recordings prove),
`checks` (the eleven suspicions and the others), `coverage`, `verdict` (by precedence), `attribution` (interventions on
engines that are up), `runs` (the commands), `suite` (planted faults).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from probes.format import Run
    from reports.model import Verdict


def judge(baseline: Path | str | Run, candidate: Path | str | Run, **options: Any) -> Verdict:
    """`harness.parity.verdict.judge`, imported when it is called: the command line must start without NumPy."""
    from harness.parity.verdict import judge as decide

    return decide(baseline, candidate, **options)
