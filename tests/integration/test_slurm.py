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
from waiting import left_over

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
import datetime, os, sys, time
from pathlib import Path
import torch
import torch.distributed as dist

mode = sys.argv[1]

def judged(look):
    return Path(os.environ["HARNESS_OUT"], f"look-{look}", "verdict.json").exists()

def keep_alive():
    while mode == "stops" or not judged(1):
        time.sleep(1)

dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=30))
for _ in range(10_000 if mode == "slow" else 5):
    dist.all_reduce(torch.ones(4))
    if mode == "slow":
        time.sleep(0.2)
if mode in ("stops", "pauses"):
    if dist.get_rank() == 1:
        keep_alive()
    working = torch.ones(1)
    while working:
        time.sleep(0.2)
        working = torch.tensor(float(not judged(2)))
        dist.all_reduce(working, op=dist.ReduceOp.MIN)
elif dist.get_rank() == 1:
    dist.barrier()
else:
    dist.all_reduce(torch.ones(4))
    dist.all_reduce(torch.ones(4))
dist.destroy_process_group()  # without it torch aborts now and then at the end: pytorch/pytorch#190489
"""
RAY_JOB = """\
import os, sys, time
from pathlib import Path
import ray
import torch
import torch.distributed as dist

mode, folder = sys.argv[1], Path(__file__).parent

@ray.remote(num_cpus=1)
class Rank:
    def train(self, rank):
        meet = f"file://{folder}/meet"
        dist.init_process_group("gloo", init_method=meet, rank=rank, world_size=2)
        for step in range(20):
            if (mode, rank, step) == ("hang", 1, 10):
                keep_alive()
            dist.all_reduce(torch.ones(4))
        return ray.get_runtime_context().get_node_id()

def keep_alive():
    time.sleep(3600)

ray.init(log_to_driver=False)
nodes = ray.get([rank.train.remote(number) for number, rank in enumerate([Rank.remote(), Rank.remote()])])
print("ranks on", len(set(nodes)), "nodes of", len(ray.nodes()), flush=True)
sys.exit(3 if mode == "fails" else 0)
"""
OWN = "own"  # in the place of a folder that each node has of its own
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
        finally:  # a job of a test that failed, too
            subprocess.run(["scancel", "--full", "--user", "root"], env=environment)
            for _ in range(60):
                if not subprocess.run(["squeue", "-h"], env=environment, capture_output=True).stdout.strip():
                    break
                time.sleep(0.5)
            for daemon in reversed(daemons):
                daemon.terminate()
            for daemon in daemons:
                daemon.wait(600)


def submitted(folder: Path, environment: dict[str, str], *options: str, job: str, launch: str) -> tuple[int, str, Path]:
    """(exit code, log, what the harness left) of a job of `JOB`."""
    (folder / "job.py").write_text(JOB)
    rendered = ["render", "slurm", *options, "--out", str(folder), "--", sys.executable, "-m", "torch.distributed.run"]
    assert cli.main([*rendered, *launch.split(), "job.py", job]) == 0
    script = next(folder.glob("*.sbatch"))
    done = subprocess.run(
        ["sbatch", "--wait", script.name], cwd=folder, env=environment, capture_output=True, text=True, timeout=800
    )
    [kept] = [*folder.glob("harness-*"), *folder.glob(f"{OWN}/harness-*")]
    return done.returncode, next(folder.glob("*.log")).read_text(errors="replace"), kept


def test_a_job_that_hangs_is_named_and_ended_in_its_allocation(tmp_path: Path, slurm: dict[str, str]) -> None:
    code, log, kept = submitted(
        tmp_path, slurm, "--stall", "5s", "--setup", SETUP, job="hang", launch="--nproc-per-node 2"
    )
    assert code == 86, log
    verdict = json.loads((kept / "n1" / "verdict.json").read_text())
    assert verdict["verdict"] == "HUNG" and verdict["triage"]["hang"] == "K10", log
    assert [one["rank"] for one in verdict["triage"]["culprits"]] == [1]


@pytest.fixture
def across() -> tuple[list[str], str]:
    """Options and launch of one job of two ranks, one on each node."""
    address = subprocess.run(["hostname", "-I"], capture_output=True, text=True).stdout.split()[0]
    interface = next(
        line.split()[1]
        for line in subprocess.run(["ip", "-4", "-o", "addr"], capture_output=True, text=True).stdout.splitlines()
        if f" {address}/" in line
    )
    launch = "--nnodes $SLURM_JOB_NUM_NODES --node-rank $SLURM_NODEID --nproc-per-node 1 --master-port $MASTER_PORT"
    options = ["--nodes", "2", "--setup", f"export GLOO_SOCKET_IFNAME={interface}; {SETUP}"]
    return options, f"{launch} --master-addr {address}"


@pytest.mark.night
@pytest.mark.parametrize("local", [False, True])
def test_a_hang_whose_culprit_is_on_another_node_is_named_and_ended(
    tmp_path: Path, slurm: dict[str, str], across: tuple[list[str], str], local: bool
) -> None:
    options, launch = across
    options += ["--local", str(tmp_path / OWN)] if local else []
    code, log, kept = submitted(tmp_path, slurm, *options, "--stall", "5s", job="stops", launch=launch)
    assert code == 86 and "the job hangs and is ended" in log, log
    assert "HUNG" not in {json.loads(file.read_text())["verdict"] for file in kept.glob("n?/verdict.json")}
    for look in (1, 2):
        verdict = json.loads((kept / f"look-{look}" / "verdict.json").read_text())
        served = {path.name.partition("-")[0] for path in (kept / f"look-{look}").iterdir() if path.is_dir()}
        assert served == ({"127.0.0.1"} if local else {"n1", "n2"}), "the address of its watch, or the node itself"
        assert verdict["verdict"] == "HUNG" and verdict["coverage"]["ranks"] == 2, verdict["reason"]
        assert [one["rank"] for one in verdict["triage"]["culprits"]] == [1]
    assert not left_over(tmp_path)


@pytest.mark.night
def test_a_pause_that_is_over_at_the_second_look_ends_nothing(
    tmp_path: Path, slurm: dict[str, str], across: tuple[list[str], str]
) -> None:
    options, launch = across
    code, log, kept = submitted(tmp_path, slurm, *options, "--stall", "5s", job="pauses", launch=launch)
    assert code == 0 and "is ended" not in log, log
    first, second = (json.loads((kept / f"look-{look}" / "verdict.json").read_text())["verdict"] for look in (1, 2))
    assert first == "HUNG" != second
    assert not left_over(tmp_path)


@pytest.mark.night
@pytest.mark.parametrize("local", [False, True])
def test_a_job_that_meets_its_time_limit_leaves_evidence_of_every_node(
    tmp_path: Path, slurm: dict[str, str], across: tuple[list[str], str], local: bool
) -> None:
    options, launch = across
    options += ["--local", str(tmp_path / OWN)] if local else []
    limit = ["--time", "2", "--early", "45", "--stall", "10m"]
    code, log, kept = submitted(tmp_path, slurm, *options, *limit, job="slow", launch=launch)
    assert code != 0 and "the time limit is 45 s away" in log, log
    folders = [path.name for path in (kept / "at-the-limit").iterdir() if path.is_dir()]
    assert len(folders) == 2 and (local or set(folders) == {"n1", "n2"}), folders
    together = json.loads((kept / "at-the-limit" / "verdict.json").read_text())
    assert together["verdict"] != "HUNG" and not together["triage"]["culprits"], together["reason"]
    assert together["coverage"]["ranks"] == 2 <= together["coverage"]["with_heartbeat"], "not by stacks alone"


@pytest.mark.night
@pytest.mark.parametrize(("mode", "code"), [("fails", 3), ("hang", 86)])
def test_a_ray_cluster_in_an_allocation(
    tmp_path: Path, slurm: dict[str, str], across: tuple[list[str], str], mode: str, code: int
) -> None:
    """Each node has one CPU for it, so that each holds one of the ranks."""
    (tmp_path / "job.py").write_text(RAY_JOB)
    options = [*across[0], "--ray", "--stall", "5s", "--out", str(tmp_path)]
    assert cli.main(["render", "slurm", *options, "--", sys.executable, str(tmp_path / "job.py"), mode]) == 0
    script = next(tmp_path.glob("*.sbatch"))
    done = subprocess.run(["sbatch", "--wait", script.name], cwd=tmp_path, env=slurm, capture_output=True, timeout=600)
    log = next(tmp_path.glob("*.log")).read_text(errors="replace")
    assert done.returncode == code, log
    if mode == "hang":
        verdict = json.loads(next(tmp_path.glob("harness-*/n1/verdict.json")).read_text())
        assert verdict["verdict"] == "HUNG" and [one["rank"] for one in verdict["triage"]["culprits"]] == [1], log
    else:
        assert "ranks on 2 nodes of 2" in log, log
    # Without cgroups Slurm does not see the agents whose raylet is gone; they look after it themselves.
    assert not left_over(tmp_path, after_s=60.0)


@pytest.mark.night
def test_a_node_that_will_fail_is_told_before_anything_starts(tmp_path: Path, slurm: dict[str, str]) -> None:
    setup = f"export GLOO_SOCKET_IFNAME=lo; {SETUP}"
    code, log, kept = submitted(
        tmp_path, slurm, "--nodes", "2", "--setup", setup, job="hang", launch="--nproc-per-node 1"
    )
    assert code == 1 and "the job was not started" in log, log
    assert "n2:   fix    export GLOO_SOCKET_IFNAME=" in log
    assert not (kept / "n1").exists()
