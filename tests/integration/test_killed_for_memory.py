"""A process that the kernel kills for memory: the watch names it, with what every process held at its peak."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import until

from harness.triage.run import triage

JOB = """
import os, resource, signal, subprocess, sys, time
def grows():
    kept = []
    while True:
        kept.append(bytearray(8 << 20))
        time.sleep(0.15)
if sys.argv[1] == "small":
    kept = bytearray(40 << 20)
    time.sleep(600)
if sys.argv[1] == "grows":
    grows()
if sys.argv[1] == "limited":
    resource.setrlimit(resource.RLIMIT_AS, (150 << 20, 150 << 20))
    grows()
if sys.argv[1] == "code":
    sys.exit(137)
small = subprocess.Popen([sys.executable, __file__, "small"])
worker = subprocess.Popen([sys.executable, __file__, sys.argv[2]])
if sys.argv[2] == "small":
    time.sleep(2.5)
    worker.send_signal(signal.SIGKILL)
code = worker.wait()
small.kill()
small.wait()
sys.exit("a worker ended" if code else 0)
"""
LIMIT = 400 << 20
ROOT = Path("/sys/fs/cgroup")


@pytest.fixture
def group() -> Iterator[Path]:
    """A cgroup with a limit of memory, of version 1 or 2; skipped where this user may make none."""
    for parent, limit in ((ROOT / "memory", "memory.limit_in_bytes"), (ROOT, "memory.max")):
        folder = parent / f"harness-test-{os.getpid()}"
        try:
            folder.mkdir()
        except OSError:
            continue
        try:
            (folder / limit).write_text(str(LIMIT))
        except OSError:
            folder.rmdir()
            continue
        break
    else:
        pytest.skip("no cgroup with a limit of memory can be made here")
    yield folder
    until(lambda: not (folder / "cgroup.procs").read_text())
    folder.rmdir()


def watched(worker: str, folder: Path, group: Path) -> tuple[str, list[dict[str, object]]]:
    """What the watch printed, and what it wrote of the ends of its processes."""
    (folder / "job.py").write_text(JOB)
    job = [sys.executable, "job.py", "", worker]
    words = [sys.executable, "-m", "harness.cli", "watch", "--out", "watched", "--", *job]
    joined = f'echo $$ > {group}/cgroup.procs && exec "$@"'
    ended = subprocess.run(["sh", "-c", joined, "sh", *words], cwd=folder, capture_output=True, text=True, check=False)
    file = folder / "watched" / "ended.json"  # none where the command ended before the first look
    return ended.stderr, json.loads(file.read_text()) if file.exists() else []


@pytest.mark.slow
def test_who_was_killed_is_named_with_what_everybody_held(tmp_path: Path, group: Path) -> None:
    printed, peaks = watched("grows", tmp_path, group)
    killed = [peak for peak in peaks if peak["killed"]]
    assert [str(peak["name"]).split()[-1] for peak in killed] == ["grows"] and killed == peaks[:1]
    assert {"small", "grows"} <= {str(peak["name"]).split()[-1] for peak in peaks}
    assert "was killed by the kernel for memory" in printed and "memory at the peak" in printed
    verdict = triage([str(tmp_path / "watched")])
    assert verdict.verdict == "INSUFFICIENT" and "killed by the kernel for memory" in verdict.reason


@pytest.mark.by_day(1)
@pytest.mark.slow
@pytest.mark.parametrize("worker", ["small", "limited", "code"])
def test_other_ends_are_no_kill_for_memory(tmp_path: Path, group: Path, worker: str) -> None:
    """A SIGKILL by its parent, a limit of its own that raises MemoryError, an exit code that looks like a signal."""
    printed, peaks = watched(worker, tmp_path, group)
    assert not any(peak["killed"] for peak in peaks)
    assert "by the kernel for memory" not in printed and "the kernel killed" not in printed
