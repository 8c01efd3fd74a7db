"""The user's own framework: which one a command starts, whether its symbols are where the hooks expect them, and a
recording of the job.

The hooks themselves live in `probes.adapters`: this side never imports a framework.
"""

from harness.frameworks.detection import Job, detect, recognised
from harness.frameworks.record import record

__all__ = ["Job", "detect", "recognised", "record"]
