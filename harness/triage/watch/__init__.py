"""Watch a job from outside: `progress` suspects a stall, `watchdog` has it examined, `command` runs the job.

A suspicion is cheap and may be wrong. Whether the job hangs is decided by the evidence and the judge.
"""

from harness.triage.watch.observe import Observer
from harness.triage.watch.progress import Progress, Seen, Snapshot, Suspicion
from harness.triage.watch.retention import Limits
from harness.triage.watch.watchdog import Stall, Watchdog
from harness.triage.watch.watched_command import Serving, watch

__all__ = [
    "Limits", "Observer", "Progress", "Seen", "Serving", "Snapshot", "Stall", "Suspicion", "Watchdog",
    "watch",
]  # fmt: skip
