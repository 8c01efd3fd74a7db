"""Collect evidence of a job that stands still, from outside and from sources that do not depend on each other.

The sources are /proc, py-spy, the flight recorder of each process, the harness's own journals and heartbeats, Ray's
GCS, nvidia-smi and NCCL RAS. All are asked at once, each within its own limit, so that one stuck layer hides none of
the others. A note says what could not be collected and how to have it next time. Nothing here judges.
"""

from harness.triage.collect.conduct import CollectOptions, collect
from harness.triage.collect.scope import Scope, live, may_live

__all__ = ["CollectOptions", "Scope", "collect", "live", "may_live"]
