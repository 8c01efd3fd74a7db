"""Which process of a failed command ended first: by what each process left behind, and by the launcher's table."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

from harness.triage.collect import Scope, collect
from harness.triage.evidence import Process
from harness.triage.judge import triage
from harness.triage.pasted import torchrun

LIMIT_S = 3.0  # for reading what the processes left; the command has ended, and its caller waits


def killed_for_memory(root: Path = Path("/sys/fs/cgroup"), cgroup: Path = Path("/proc/self/cgroup")) -> int:
    """How many processes of this process's cgroup the kernel has killed for memory, as its cgroup counts them."""
    with contextlib.suppress(OSError, ValueError):
        paths = dict(line.split(":", 2)[1:] for line in cgroup.read_text().splitlines())
        second = root, paths.get("", ""), "memory.events"
        first = root / "memory", paths.get("memory", ""), "memory.oom_control"
        for base, path, name in (second, first):
            for folder in (base / path.lstrip("/"), base):  # in a container its own cgroup is the root
                if (file := folder / name).is_file():
                    return next((int(line.split()[1]) for line in file.read_text().splitlines()
                                 if line.startswith("oom_kill ")), 0)  # fmt: skip
    return 0


def failed_ranks(output: str) -> dict[int, Process]:
    """Pid -> rank in torchrun's table. `output`: the end of what the command printed."""
    failures = torchrun.Failures()
    for number, line in enumerate(output.splitlines(), 1):
        failures.feed("", number, line)
    failures.close()
    return {process.pid: process for process in torchrun.processes(failures.rows)}


def first_death(directory: Path) -> str:
    """Say in one line which process of a job ended first, and who failed after it; empty if nothing tells.

    `directory`: of the watch, with what it wrote about their ends.
    """
    folder = Path(tempfile.mkdtemp(prefix="harness-last-words-"))
    try:
        evidence = collect(
            Scope((), directory, ray_address=""), out=folder, samples=1, native=False, nodes=False, deadline_s=LIMIT_S
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    killed = any(peak.killed for peak in evidence.peaks)
    if all(process.rank is None for process in evidence.processes) and not killed:
        return ""  # the last words of the command are those of its process
    verdict = triage(replace(evidence, notes=()))
    return "; ".join(verdict.evidence[:-1]) if verdict.verdict == "INSUFFICIENT" else ""  # the last says when it ended
