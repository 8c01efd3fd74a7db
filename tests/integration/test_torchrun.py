"""The rendered torchrun script: the job's exit code, and a hang named and ended, on one node and across two.

Nodes that share no folder are network namespaces (harness/planted/hangs/hosts.py).
"""

from __future__ import annotations

import json
import os
import secrets
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import left_over

from harness import cli
from harness.planted.hangs import hosts as lab
from scenarios.ports import free_port

ROOT = Path(__file__).parents[2]
SETUP = f"export PATH={shlex.quote(str(Path(sys.executable).parent))}:$PATH PYTHONPATH={shlex.quote(str(ROOT))}"
JOB = """
import sys, threading, time
import torch
import torch.distributed as dist

mode = sys.argv[1]
dist.init_process_group("gloo")
for _ in range(3):
    dist.all_reduce(torch.ones(4))
if dist.get_rank() == 1:
    if mode == "fails":
        sys.exit(3)
    if mode == "hangs":
        lock = threading.Lock()
        with lock, lock:
            pass
    if mode == "stops":
        while True:
            time.sleep(1)
if mode != "succeeds":
    dist.all_reduce(torch.ones(4))
dist.destroy_process_group()  # without it torch aborts now and then at the end: pytorch/pytorch#190489
"""


def rendered(folder: Path, mode: str, *options: str) -> Path:
    (folder / "job.py").write_text(JOB)
    common = ["--stall", "5s", "--doctor=--no-imports", "--setup", SETUP, "--out", str(folder)]
    assert cli.main(["render", "torchrun", *common, *options, "--", "python", "job.py", mode]) == 0
    return folder / "python.torchrun.sh"


@pytest.mark.by_day(1)
@pytest.mark.parametrize(
    ("mode", "code"), [("succeeds", 0), pytest.param("fails", 1, marks=pytest.mark.night), ("hangs", 86)]
)
def test_the_exit_code_is_torchrun_s_or_that_of_a_hang(tmp_path: Path, mode: str, code: int) -> None:
    script = rendered(tmp_path, mode, "--nproc-per-node", "2")
    with (tmp_path / "log").open("w") as log:
        done = subprocess.run(
            ["bash", script], cwd=tmp_path, env={**os.environ, "RUN_ID": "x"}, stdout=log, stderr=log, timeout=120
        )
    assert done.returncode == code, (tmp_path / "log").read_text()
    if mode == "hangs":
        verdict = json.loads((tmp_path / "harness-x" / "node-0" / "verdict.json").read_text())
        assert verdict["verdict"] == "HUNG" and [party["rank"] for party in verdict["triage"]["culprits"]] == [1]


@pytest.mark.night
def test_a_hang_across_nodes_that_share_a_folder_is_named_and_ended(tmp_path: Path) -> None:
    options = ["--nodes", "2", "--nproc-per-node", "1", "--shared", str(tmp_path / "shared")]
    script = rendered(tmp_path, "stops", *options)
    given = {"RUN_ID": "x", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "GLOO_SOCKET_IFNAME": "lo"}
    with (tmp_path / "log").open("w") as log:
        nodes = [
            subprocess.Popen(
                ["bash", script], cwd=tmp_path, env={**os.environ, **given, "NODE_RANK": rank}, stdout=log, stderr=log
            )
            for rank in "01"
        ]
        codes = [node.wait(600) for node in nodes]
    text = (tmp_path / "log").read_text()
    assert codes == [86, 86] and "the job hangs and is ended" in text, text
    kept = tmp_path / "shared" / "harness-x"
    assert [(kept / f"ended.node-{rank}").read_text() for rank in "01"] == ["86\n", "86\n"]
    for look in ("look-1", "look-2"):
        verdict = json.loads((kept / look / "verdict.json").read_text())
        assert verdict["verdict"] == "HUNG" and verdict["coverage"]["ranks"] == 2, verdict["reason"]
        assert [party["rank"] for party in verdict["triage"]["culprits"]] == [1]


NAMES = lab.NAMES[:2]


def on_hosts(root: Path, mode: str, *options: str) -> list[int]:
    """Exit codes of a job of two hosts that know each other's addresses, each with a folder of its own."""
    script = rendered(root, mode, "--nodes", "2", "--nproc-per-node", "1", *options)
    addresses = " ".join(lab.ADDRESSES[: len(NAMES)])
    given = {"RUN_ID": "x", "NODE_ADDRS": addresses, "RLHF_HARNESS_TOKEN": secrets.token_hex(16)}
    nodes = []
    with lab.laboratory() as hosts:
        for host, name in enumerate(NAMES):
            (root / name).mkdir()
            shutil.copy(root / "job.py", root / name)
            environ = {**given, "NODE_RANK": str(host)}
            nodes.append(hosts.start(host, ["bash", str(script)], root / name / "log", **environ))
        codes = [node.wait(600) for node in nodes]
        assert not [left for name in NAMES for left in left_over(root / name)]
    return codes


@pytest.mark.night
@pytest.mark.skipif(bool(lab.why_not()), reason=lab.why_not() or "-")
def test_a_hang_across_hosts_that_share_no_folder_is_named_and_ended_on_all(tmp_path: Path) -> None:
    codes = on_hosts(tmp_path, "stops", "--stall", "3s")
    first, second = ((tmp_path / name / "log").read_text() for name in NAMES)
    assert codes == [86, 86], first + second
    assert "rank 1 on hostb" in first and "the job hangs, by the evidence of all its nodes" in second, first + second
    for look in ("look-1", "look-2"):
        verdict = json.loads((tmp_path / NAMES[0] / "harness-x" / look / "verdict.json").read_text())
        assert verdict["verdict"] == "HUNG" and verdict["coverage"]["ranks"] == 2, verdict["reason"]
        assert [(party["rank"], party["host"]) for party in verdict["triage"]["culprits"]] == [(1, NAMES[1])]
