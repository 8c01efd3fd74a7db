"""`harness watch --pid` on real processes: a tool whose full pipe nobody reads, and a program that works and ends."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import until

from harness.exit_codes import STALLED
from harness.triage import directory
from harness.triage.collect import channels, proc

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
HANGS = """
import subprocess, sys
tool = subprocess.Popen([sys.executable, "-S", "-c", "import sys; print('x' * 300000, file=sys.stderr, flush=True)"],
                        stdout=-1, stderr=-1)
tool.stdout.read()
"""
# Two ranks that reduce for some seconds; then rank 1 sleeps. A launcher polls meanwhile.
LATER = """
import pathlib, sys, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
began = time.monotonic()
while True:
    over = torch.tensor(float(time.monotonic() - began > 12))
    dist.broadcast(over, src=0)
    pathlib.Path(sys.argv[1]).touch()
    if over and dist.get_rank() == 1:
        time.sleep(1000)
    time.sleep(0.01)
    dist.all_reduce(torch.ones(10))
"""
WORKS = "import time\nend = time.monotonic() + 8\nwhile time.monotonic() < end: sum(range(1000))\n"


def attached(
    text: str, folder: Path, *, hangs: bool, stall: str = "2s"
) -> tuple[int, subprocess.Popen[bytes], list[dict[str, object]]]:
    job = subprocess.Popen([sys.executable, "-c", text], start_new_session=True)
    try:
        if hangs:
            until(lambda: any(channels.writing(pid).link for pid in proc.descendants((job.pid,), proc.parents())))
        options = ["--stall", "2s", "--on-stall", "end", "--out", "out", "--on-verdict", "cat > hook.json"]
        command = [sys.executable, "-m", "harness.cli", "watch", "--pid", str(job.pid), *options]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        verdicts = [json.loads(path.read_text()) for path in folder.rglob("*.json") if path.name == "hook.json"]
        return done.returncode, job, verdicts
    finally:
        job.kill()
        job.wait()


def test_a_running_job_that_hangs_is_ended_at_the_second_look(tmp_path: Path) -> None:
    code, _, [verdict] = attached(HANGS, tmp_path, hangs=True)
    assert code == STALLED and verdict["verdict"] == "HUNG"
    assert (tmp_path / "out" / "verdict.json").exists()


def test_a_running_job_that_works_is_left_alone(tmp_path: Path) -> None:
    code, job, verdicts = attached(WORKS, tmp_path, hangs=False)
    assert (code, job.returncode) == (0, 0) and not [each for each in verdicts if each["verdict"] == "HUNG"]


@pytest.mark.night
def test_a_job_that_hangs_after_several_looks_is_ended(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LATER)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    job = subprocess.Popen([*launcher, "train.py", "began"], cwd=tmp_path, start_new_session=True)
    try:
        until((tmp_path / "began").exists)
        options = ["--stall", "5s", "--on-stall", "end", "--out", "out"]
        command = [sys.executable, "-m", "harness.cli", "watch", "--pid", str(job.pid), *options]
        ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=600)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(job.pid, signal.SIGKILL)
        job.wait()
    assert ended.returncode == STALLED, ended.stderr
    verdict = json.loads((tmp_path / "out" / "verdict.json").read_text())
    assert verdict["verdict"] == "HUNG"
    looked = directory.read(verdict["paths"]["evidence"]).processes
    assert min(process.samples[-1].at_s - process.samples[0].at_s for process in looked) >= 5.0
