"""Jobs on an older Ray and another Python than the harness's: their state is asked by their own interpreter."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from interpreters import environment, python

JOB = """
import os, sys, threading
import ray

@ray.remote
class Rollout:
    def pid(self):
        return os.getpid()

    def generate(self):
        lock = threading.Lock()
        lock.acquire()
        self.take_the_lock_again(lock)

    def take_the_lock_again(self, lock):
        lock.acquire()

@ray.remote
class Trainer:
    def fit(self, rollout):
        return ray.get(rollout.generate.remote())

ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)  # whatever cluster runs beside it
rollout, trainer = Rollout.remote(), Trainer.remote()
pid, fit = ray.get(rollout.pid.remote()), trainer.fit.remote(rollout)
ray.wait([fit], timeout=3)
print(pid, ray.__version__, flush=True)
ray.get(fit)
"""


@pytest.mark.night
@pytest.mark.parametrize(
    ("version", "ray"), [("3.10", "2.9.3"), pytest.param("3.12", "2.37.0", marks=pytest.mark.night)]
)
def test_the_actor_that_hangs_is_named(version: str, ray: str, tmp_path: Path) -> None:
    base = python(version)
    if base is None:
        pytest.skip(f"no Python {version} on this machine")
    interpreter = environment(tmp_path / "env", base, f"ray=={ray}", "setuptools<70")
    (tmp_path / "job.py").write_text(JOB)
    with subprocess.Popen([interpreter, "job.py"], cwd=tmp_path, stdout=subprocess.PIPE, text=True) as job:
        try:
            assert job.stdout is not None
            pid, answered = job.stdout.readline().split()
            assert answered == ray
            command = [sys.executable, "-m", "harness.entry", "triage", str(job.pid), "--format", "json"]
            for _ in range(5):
                done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
                if not any("no answer within" in missing for missing in json.loads(done.stdout)["missing"]):
                    break  # a busy host may not start the job's Python within the time of one look, and says so
        finally:
            job.terminate()
    verdict = json.loads(done.stdout)
    assert (done.returncode, verdict["verdict"]) == (1, "HUNG"), done.stdout
    assert [party["pid"] for party in verdict["triage"]["culprits"]] == [int(pid)]
