"""All sections of one node, side by side in threads; one that fails or is late costs only itself."""

from __future__ import annotations

import concurrent.futures
import socket
import time
from typing import Any

from harness.doctor.gather.graphics import gpus
from harness.doctor.gather.limits import limits, memory
from harness.doctor.gather.network import network
from harness.doctor.gather.processes import processes
from harness.doctor.gather.software import imports, software
from harness.doctor.gather.storage import shm, storage
from harness.doctor.gather.tracing import tracing

SECTIONS = {
    "imports": imports, "gpus": gpus, "tracing": tracing, "network": network, "shm": shm, "storage": storage,
    "processes": processes, "software": software, "limits": limits, "memory": memory,
}  # fmt: skip
SLOW = ("imports",)


def node(skip: tuple[str, ...] = (), patience_s: float = 40.0) -> dict[str, Any]:
    """Section -> what was measured, and `gaps`: section -> why it is missing. Never raises for a sick section.

    Takes what its slowest section takes: 2 to 10 s where torch is imported in a process of its own.
    """
    gaps = dict.fromkeys(skip, "left out on request")
    found: dict[str, Any] = {"where": socket.gethostname()}
    until = time.monotonic() + patience_s
    pool = concurrent.futures.ThreadPoolExecutor(max_workers=len(SECTIONS))
    asked = {name: pool.submit(section) for name, section in SECTIONS.items() if name not in skip}
    for name, answer in asked.items():
        try:
            found[name] = answer.result(timeout=max(0.0, until - time.monotonic()))
        except concurrent.futures.TimeoutError:
            gaps[name] = f"no answer within {patience_s:.0f} s"
        except Exception as error:  # one sick section (an odd /proc, a driver) must not hide the others; it is told
            gaps[name] = f"{type(error).__name__}: {error}"[:300]
    pool.shutdown(wait=False)  # a thread that hangs in a dead file system is left behind with its process
    return {**found, "gaps": gaps}
