"""Evidence of a job that stands still, taken from outside and from sources that do not depend on one another.

/proc, py-spy, the flight recorder in each process, the harness's own journals and heartbeats, Ray's GCS, nvidia-smi and
NCCL RAS are asked at once, each within its own limit: one stuck layer blinds none of the others. What could not be had
is a note that says how to have it next time. Nothing here judges.
"""

from harness.triage.collect.conduct import collect
from harness.triage.collect.scope import Scope, live, may_live

__all__ = ["Scope", "collect", "live", "may_live"]
