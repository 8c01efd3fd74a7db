"""Parity: whether two recorded runs agree. `judge` reads two run directories and gives one verdict (see `verdict`).

The rooms: `facts` (two recordings aligned, divergences and evidence), `subjects` (what recordings show of each subject,
its causes and checks), `gather` (all of it in one pass), `causes` and `explain` (causes that recordings prove),
`checks` (the eleven suspicions and the others), `coverage`, `verdict` and `audit` (the decision by precedence),
`interventions` and `attribution` (changes on engines that are still up), `runs` (the commands).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from probes.format import Run
    from reports.model import Verdict


def judge(baseline: Path | str | Run, candidate: Path | str | Run, **options: Any) -> Verdict:
    """Call `harness.parity.verdict.judge`, which is imported only here: the command line must start without NumPy."""
    from harness.parity.verdict import judge as decide

    return decide(baseline, candidate, **options)
