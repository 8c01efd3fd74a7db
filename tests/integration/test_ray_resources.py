"""A real Ray cluster whose actors hold what a task asks for: a hang if nothing can become free, and none if it will."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from waiting import until

from harness.triage.collect import collect, live
from harness.triage.evidence import Evidence
from harness.triage.judge import triage

JOB = """
import sys, time
import ray

@ray.remote(num_cpus=1)
def score():
    return 1

@ray.remote(num_cpus=1)
class Rollout:
    def generate(self, how):
        time.sleep(3000 if how == "ends" else 0)
        return ray.get(score.remote()) if how == "waits" else how

ray.init("local", num_cpus=2, include_dashboard=sys.argv[1] == "waits", log_to_driver=False)  # beside others
workers = [Rollout.remote() for _ in range(2)]
ray.get([worker.generate.remote("starts") for worker in workers])
tasks = [worker.generate.remote(sys.argv[1]) for worker in workers]
ray.get(tasks if sys.argv[1] == "waits" else score.remote())
"""
OLD_ENOUGH_S = 12.0  # a younger request is not judged


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[str], int]]:
    running: list[subprocess.Popen[bytes]] = []

    def run(how: str) -> int:
        (tmp_path / "job.py").write_text(JOB)
        running.append(subprocess.Popen([sys.executable, "job.py", how], cwd=tmp_path, start_new_session=True))
        return running[-1].pid

    yield run
    for process in running:
        process.terminate()  # Ray then ends its daemons, some of which have sessions of their own
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(600)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.by_day(1)
@pytest.mark.parametrize("how", ["waits", pytest.param("idles", marks=pytest.mark.night), "ends"])
def test_a_task_that_no_cpu_is_left_for(start: Callable[[str], int], tmp_path: Path, how: str) -> None:
    pid = start(how)
    seen: list[Evidence] = []

    def pending() -> bool:
        seen.append(collect(live(str(pid)), out=tmp_path / f"look{len(seen)}", native=False, nodes=False, gap_s=0.5))
        tasks = [task for task in seen[-1].ray_tasks if task.name == "score" and not task.pid]
        return any(task.state == "PENDING_NODE_ASSIGNMENT" and task.age_s >= OLD_ENOUGH_S for task in tasks)

    time.sleep(OLD_ENOUGH_S)  # each look costs a second of processor time, and none of the earlier ones would do
    until(pending)
    verdict = triage(seen[-1])
    assert verdict.triage is not None and not verdict.triage.culprits
    if how == "ends":
        assert verdict.verdict != "HUNG", verdict.reason
        return
    assert (verdict.verdict, verdict.triage.hang) == ("HUNG", "K14"), verdict.reason
    assert "Rollout" in verdict.reason and "score" in verdict.reason
    assert any("0 of 2 CPU free" in line for line in verdict.evidence)
