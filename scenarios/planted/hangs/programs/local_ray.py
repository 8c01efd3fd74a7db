"""A Ray of the program's own. Ray gives its node 30 s to start, which a busy host may not have: it is tried again."""

from __future__ import annotations

import ray

ATTEMPTS = 4


def start() -> None:
    for left in reversed(range(ATTEMPTS)):
        try:
            ray.init(address="local", num_cpus=1, include_dashboard=False)
            return
        except Exception:  # Ray has no class of its own for it
            ray.shutdown()
            if not left:
                raise
