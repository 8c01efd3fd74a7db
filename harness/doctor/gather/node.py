"""Gathers all sections of one node in parallel threads. A section that fails or is late costs only itself."""

from __future__ import annotations

import queue
import socket
import threading
import time
from typing import Any

from harness.doctor.gather.builds import builds
from harness.doctor.gather.graphics import gpus
from harness.doctor.gather.limits import limits, memory
from harness.doctor.gather.network import network
from harness.doctor.gather.processes import processes
from harness.doctor.gather.software import imports, software
from harness.doctor.gather.storage import shm, storage
from harness.doctor.gather.tracing import tracing

SECTIONS = {
    "imports": imports, "gpus": gpus, "tracing": tracing, "network": network, "shm": shm, "storage": storage,
    "builds": builds, "processes": processes, "software": software, "limits": limits, "memory": memory,
}  # fmt: skip
SLOW = ("imports",)


def node(skip: tuple[str, ...] = (), patience_s: float = 75.0) -> dict[str, Any]:
    """Section -> what was measured, and `gaps`: section -> why it is missing. Never raises for a section that fails.

    Takes as long as its slowest section: 2 to 10 s if torch is imported in a process of its own.
    """
    gaps = dict.fromkeys(skip, "left out on request")
    answers: queue.SimpleQueue[tuple[str, Any, str]] = queue.SimpleQueue()

    def run(name: str) -> None:
        try:
            answers.put((name, SECTIONS[name](), ""))
        except Exception as error:  # a failing section (an odd /proc, a driver) must not hide the others; it is named
            answers.put((name, None, f"{type(error).__name__}: {error}"[:300]))

    waiting = {name for name in SECTIONS if name not in gaps}
    for name in waiting:
        # daemon threads: one that hangs in a dead file system must not keep the process alive
        threading.Thread(target=run, args=(name,), daemon=True).start()
    sections: dict[str, Any] = {"where": socket.gethostname()}
    until = time.monotonic() + patience_s
    while waiting:
        try:
            name, section, wrong = answers.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            gaps.update(dict.fromkeys(waiting, f"no answer within {patience_s:g} s"))
            break
        waiting.discard(name)
        if wrong:
            gaps[name] = wrong
        else:
            sections[name] = section
    return {**sections, "gaps": gaps}
