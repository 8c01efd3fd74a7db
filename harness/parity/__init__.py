"""Parity: whether two recorded runs agree. `judge` reads two run directories and gives one verdict (see `verdict`).

- `facts`: two recordings aligned, divergences, and the evidence.
- `subjects`: for each subject, what recordings show of it, its causes and its checks.
- `gather`: everything that two recordings show, in one pass.
- `causes`, `explain`: the causes that recordings prove.
- `checks`: the registry of checks, and those that serve several subjects; the others are with their subjects.
- `coverage`, `verdict`, `audit`: the decision, by precedence.
- `interventions`, `attribution`: changes on engines that are still up, to prove causes.
- `runs`: the commands.
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
