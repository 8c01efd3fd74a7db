"""The rendered script of a Ray job, submitted on loopback: the job's exit code, and a hang named and ended."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import until

from harness import cli
from harness.launchers._templates import rendered
from scenarios.ports import free_port

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
JOB = """
import sys, threading
import ray

@ray.remote
class Rollout:
    def generate(self, mode):
        lock = threading.Lock()
        if mode == "hangs":
            with lock, lock:
                pass

ray.init(log_to_driver=False)
ray.get(Rollout.remote().generate.remote(sys.argv[1]))
sys.exit(3 if sys.argv[1] == "fails" else 0)
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[dict[str, str]]:
    """The environment of a user of a cluster of one node."""
    port, dashboard = free_port(), free_port()
    bare = {name: value for name, value in os.environ.items() if not name.startswith(("RLHF_", "RAY_"))}
    environ = {**bare, "PATH": f"{BIN}:{bare['PATH']}", "PYTHONPATH": str(ROOT), "RAY_AUTH_MODE": "disabled"}
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        command = [
            str(BIN / "ray"), "start", "--head", "--block", "--disable-usage-stats", "--node-ip-address=127.0.0.1",
            "--num-cpus=2", f"--port={port}", f"--dashboard-port={dashboard}", f"--temp-dir={folder}/ray",
            f"--dashboard-agent-listen-port={free_port()}", "--ray-client-server-port", str(free_port()),
        ]  # fmt: skip
        with (Path(folder) / "log").open("w+b") as log:
            ray = subprocess.Popen(command, env=environ, cwd=folder, stdout=log, stderr=log)
            try:
                written = Path(folder) / "log"
                until(
                    lambda: b"Ray runtime started" in written.read_bytes(),
                    what=lambda: written.read_text()[-2000:],
                    process=ray,
                )
                yield {**environ, "RAY_API_SERVER_ADDRESS": f"http://127.0.0.1:{dashboard}"}
            finally:
                ray.terminate()  # with --block it ends its processes
                ray.wait(600)


def submitted(folder: Path, environ: dict[str, str], mode: str) -> tuple[int, str]:
    """(exit code, log) of a job of `JOB`."""
    (folder / "job").mkdir()
    (folder / "job" / "job.py").write_text(JOB)
    options = ["--stall", "3s" if mode == "hangs" else "1m", "--doctor=--no-imports", "--results", str(folder)]
    assert cli.main(["render", "ray-job", *options, "--out", str(folder / "job"), "--", "python", "job.py", mode]) == 0
    script = folder / "job" / "python.ray-job.sh"
    with (folder / "log").open("w") as log:
        done = subprocess.run(["bash", script], env={**environ, "RUN_ID": mode}, stdout=log, stderr=log, timeout=600)
    return done.returncode, (folder / "log").read_text()


@pytest.mark.by_day(2)
@pytest.mark.parametrize(
    ("mode", "code"),
    [
        *(pytest.param(mode, code, marks=pytest.mark.night) for mode, code in (("succeeds", 0), ("fails", 3))),
        ("hangs", 86),
    ],
)
def test_the_exit_code_is_the_job_s_or_that_of_a_hang(
    tmp_path: Path, cluster: dict[str, str], mode: str, code: int
) -> None:
    exit_code, log = submitted(tmp_path, cluster, mode)
    assert exit_code == code, log
    kept = tmp_path / f"harness-{mode}"
    assert "checks made" in (kept / "doctor-node-0.txt").read_text()
    if mode == "hangs":
        verdict = json.loads((kept / "node-0" / "verdict.json").read_text())
        assert verdict["verdict"] == "HUNG" and len(verdict["triage"]["culprits"]) == 1, log
        assert verdict["triage"]["culprits"][0]["role"] == "Rollout"


@pytest.mark.night
def test_a_cluster_that_is_not_there_is_said(tmp_path: Path, cluster: dict[str, str]) -> None:
    address = f"http://127.0.0.1:{free_port()}"
    code, log = submitted(tmp_path, {**cluster, "RAY_API_SERVER_ADDRESS": address}, "succeeds")
    assert code == 1 and log.startswith(f"harness: no Ray cluster answers at {address}; fix: ray start --head"), log
    assert len(log.splitlines()) == 1


@pytest.mark.night
def test_a_node_that_never_joins_is_not_awaited_for_ever(cluster: dict[str, str]) -> None:
    environ = cluster | {"RAY_ADDRESS": "local"}
    code = [sys.executable, "-c", rendered("all_nodes.py")]
    alone, awaited = (
        subprocess.run([*code, nodes, "0"], env=environ, capture_output=True, text=True) for nodes in ("1", "2")
    )
    assert alone.returncode == 0, alone.stderr
    assert awaited.returncode == 1 and awaited.stderr.splitlines()[-1].startswith("1 of 2 nodes joined Ray: ")
