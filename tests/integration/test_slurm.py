"""The rendered batch script under a real Slurm of two virtual nodes: a hang is named and ended, a time limit leaves
evidence, and a node that will fail is told before the start."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import cli
from scenarios.ports import free_port

ROOT = Path(__file__).parents[2]
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol")
pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        os.geteuid() != 0 or not all(map(shutil.which, PROGRAMS)), reason="needs root, and: apt install slurm-wlm munge"
    ),
]

CONFIG = """\
ClusterName=test
SlurmctldHost=localhost
SlurmctldPort={port}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={root}/munge.socket
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool-%n
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/slurmd-%n.pid
SlurmctldLogFile={root}/slurmctld.log
SlurmdLogFile={root}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
TaskPlugin=task/none
MpiDefault=none
MailProg=/bin/true
KillWait=5
{nodes}
PartitionName=all Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP
"""
JOB = """\
import datetime, sys, time
import torch
import torch.distributed as dist

dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=30))
for _ in range(5 if sys.argv[1] == "hang" else 10_000):
    dist.all_reduce(torch.ones(4))
    if sys.argv[1] == "slow":
        time.sleep(0.2)
if dist.get_rank() == 1:
    dist.barrier()
else:
    dist.all_reduce(torch.ones(4))
    dist.all_reduce(torch.ones(4))
"""
SETUP = f"export PATH={shlex.quote(str(Path(sys.executable).parent))}:$PATH PYTHONPATH={shlex.quote(str(ROOT))}"


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of a user of a Slurm of two nodes, both on this host."""
    root = tmp_path_factory.mktemp("slurm")
    ports = [free_port() for _ in range(3)]
    nodes = "\n".join(
        f"NodeName=n{number} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs=2 RealMemory=1000"
        for number, port in enumerate(ports[1:], 1)
    )
    (root / "slurm.conf").write_text(CONFIG.format(port=ports[0], root=root, nodes=nodes))
    for name in ("state", "spool-n1", "spool-n2"):
        (root / name).mkdir()
    (root / "munge.key").write_bytes(os.urandom(128))
    (root / "munge.key").chmod(0o400)
    environment = {**os.environ, "SLURM_CONF": str(root / "slurm.conf")}
    options = {"socket": "munge.socket", "key-file": "munge.key", "pid-file": "munge.pid", "seed-file": "munge.seed"}
    commands = [
        ["munged", "--force", "--foreground", *(f"--{key}={root / name}" for key, name in options.items())],
        ["slurmctld", "-D", "-c"], ["slurmd", "-D", "-N", "n1"], ["slurmd", "-D", "-N", "n2"],
    ]  # fmt: skip
    daemons = []
    with (root / "daemons.log").open("wb") as log:
        for command in commands:
            daemons.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
            time.sleep(0.5)
        try:
            for _ in range(120):
                shown = subprocess.run(["sinfo", "-h", "-o", "%D %t"], env=environment, capture_output=True, text=True)
                if shown.stdout.split() == ["2", "idle"]:
                    break
                time.sleep(0.5)
            else:
                pytest.fail(f"Slurm did not start: {shown.stdout} {(root / 'daemons.log').read_text()[-2000:]}")
            yield environment
        finally:
            for daemon in reversed(daemons):
                daemon.terminate()
            for daemon in daemons:
                daemon.wait(30)


def submitted(folder: Path, environment: dict[str, str], *options: str, job: str, launch: str) -> tuple[int, str, Path]:
    """(exit code, log, what the harness left) of a job of `JOB`."""
    (folder / "job.py").write_text(JOB)
    rendered = ["render", "slurm", *options, "--out", str(folder), "--", sys.executable, "-m", "torch.distributed.run"]
    assert cli.main([*rendered, *launch.split(), "job.py", job]) == 0
    script = next(folder.glob("*.sbatch"))
    done = subprocess.run(
        ["sbatch", "--wait", script.name], cwd=folder, env=environment, capture_output=True, text=True, timeout=800
    )
    return done.returncode, next(folder.glob("*.log")).read_text(errors="replace"), next(folder.glob("harness-*"))


def test_a_job_that_hangs_is_named_and_ended_in_its_allocation(tmp_path: Path, slurm: dict[str, str]) -> None:
    code, log, kept = submitted(
        tmp_path, slurm, "--stall", "5s", "--setup", SETUP, job="hang", launch="--nproc-per-node 2"
    )
    assert code == 86, log
    verdict = json.loads((kept / "n1" / "verdict.json").read_text())
    assert verdict["verdict"] == "HUNG" and verdict["triage"]["hang"] == "K10", log
    assert [one["rank"] for one in verdict["triage"]["culprits"]] == [1]


def test_a_job_that_meets_its_time_limit_leaves_evidence_of_every_node(tmp_path: Path, slurm: dict[str, str]) -> None:
    address = subprocess.run(["hostname", "-I"], capture_output=True, text=True).stdout.split()[0]
    interface = next(
        line.split()[1]
        for line in subprocess.run(["ip", "-4", "-o", "addr"], capture_output=True, text=True).stdout.splitlines()
        if f" {address}/" in line
    )
    launch = "--nnodes $SLURM_JOB_NUM_NODES --node-rank $SLURM_NODEID --nproc-per-node 1 --master-port $MASTER_PORT"
    code, log, kept = submitted(
        tmp_path, slurm, "--nodes", "2", "--time", "2", "--early", "45", "--stall", "10m",
        "--setup", f"export GLOO_SOCKET_IFNAME={interface}; {SETUP}",
        job="slow", launch=f"{launch} --master-addr {address}",
    )  # fmt: skip
    assert code != 0 and "the time limit is 45 s away" in log, log
    for node in ("n1", "n2"):
        seen = json.loads((kept / f"{node}-at-the-limit" / "verdict.json").read_text())
        assert seen["verdict"] != "HUNG" and not seen["triage"]["culprits"], seen["reason"]


def test_a_node_that_will_fail_is_told_before_anything_starts(tmp_path: Path, slurm: dict[str, str]) -> None:
    setup = f"export GLOO_SOCKET_IFNAME=lo; {SETUP}"
    code, log, kept = submitted(
        tmp_path, slurm, "--nodes", "2", "--setup", setup, job="hang", launch="--nproc-per-node 1"
    )
    assert code == 1 and "the job was not started" in log, log
    assert "n2:   fix    export GLOO_SOCKET_IFNAME=" in log
    assert not (kept / "n1").exists()
