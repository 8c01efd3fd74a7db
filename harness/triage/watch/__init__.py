"""Watch a job from outside.

`watched_command` runs the job with the probes on and ticks a `watchdog` once a second. At each tick `observe` takes a
snapshot of its processes, and `progress` suspects a stall or does not. A suspicion is cheap and may be wrong. The
watchdog then has evidence collected (`harness.triage.collect`) and judged (`harness.triage.judge`), as
`harness triage PID` does.
"""

from harness.triage.watch.observe import Observer
from harness.triage.watch.progress import ProcessSnapshot, Progress, Snapshot, Suspicion
from harness.triage.watch.retention import Limits
from harness.triage.watch.watchdog import Stall, Watchdog
from harness.triage.watch.watched_command import Serving, watch

__all__ = [
    "Limits", "Observer", "ProcessSnapshot", "Progress", "Serving", "Snapshot", "Stall", "Suspicion", "Watchdog",
    "watch",
]  # fmt: skip
