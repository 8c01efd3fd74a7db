"""Watching a job from outside: `progress` suspects a stall, `watchdog` has it looked at, `command` runs the job.

A suspicion is cheap and may be wrong; whether the job hangs is for the evidence and the judge to say.
"""

from harness.triage.watch.command import Serving, watch
from harness.triage.watch.observe import Observer
from harness.triage.watch.progress import Progress, Seen, Snapshot, Suspicion
from harness.triage.watch.retention import Limits
from harness.triage.watch.watchdog import Stall, Watchdog

__all__ = [
    "Limits", "Observer", "Progress", "Seen", "Serving", "Snapshot", "Stall", "Suspicion", "Watchdog",
    "watch",
]  # fmt: skip
