"""Starts a Ray cluster of the program's own. Its node has 30 s to start, too few on a busy host, so start is
retried.
"""

from __future__ import annotations

import ray

ATTEMPTS = 4


def start() -> None:
    for attempts_left in reversed(range(ATTEMPTS)):
        try:
            ray.init(address="local", num_cpus=1, include_dashboard=False)
            return
        except Exception:  # Ray raises no specific class here
            ray.shutdown()
            if not attempts_left:
                raise
