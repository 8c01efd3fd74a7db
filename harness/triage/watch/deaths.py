"""Which process of a failed command ended first: by what each process left behind, and by the launcher's table."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

from harness.triage.collect import Scope, collect
from harness.triage.judge import triage
from harness.triage.pasted import torchrun

LIMIT_S = 3.0  # for reading what the processes left; the command has ended, and its caller waits


def killed_for_memory(root: Path = Path("/sys/fs/cgroup"), cgroup: Path = Path("/proc/self/cgroup")) -> int:
    """How many processes the kernel has killed because a limit of memory of this process's cgroup was reached."""
    with contextlib.suppress(OSError, ValueError, StopIteration):
        path = next(line.partition("::")[2] for line in cgroup.read_text().splitlines() if line.startswith("0::"))
        for folder in (root / path.lstrip("/"), root):  # in a container its own cgroup is the root
            if (file := folder / "memory.events").is_file():
                return next((int(line.split()[1]) for line in file.read_text().splitlines()
                             if line.startswith("oom_kill ")), 0)  # fmt: skip
    return 0


def first_death(directory: Path, output: str) -> str:
    """Say in one line which process of several ended first, and who failed after it; empty if nothing tells.

    `directory`: of the watch. `output`: the end of what the command printed.
    """
    folder = Path(tempfile.mkdtemp(prefix="harness-last-words-"))
    try:
        evidence = collect(
            Scope((), directory, ray_address=""), out=folder, samples=1, native=False, nodes=False, deadline_s=LIMIT_S
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if sum(process.rank is not None for process in evidence.processes) < 2:
        return ""  # the last words of the command are those of its process
    failures = torchrun.Failures()
    for number, line in enumerate(output.splitlines(), 1):
        failures.feed("", number, line)
    failures.close()
    codes = {process.pid: process.exit_code for process in torchrun.processes(failures.rows)}
    processes = (replace(each, exit_code=codes.get(each.pid, each.exit_code)) for each in evidence.processes)
    verdict = triage(replace(evidence, processes=tuple(processes), notes=()))
    return "; ".join(verdict.evidence[:-1]) if verdict.verdict == "INSUFFICIENT" else ""  # the last says when it ended
